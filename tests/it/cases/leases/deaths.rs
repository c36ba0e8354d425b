//! A reader, or the job beside it, that is killed, frozen or raced at every call of the store.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn lea_03_a_reader_killed_at_any_call_holds_for_an_hour_and_leaves_nothing() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let begun = START + 4 * HOUR;
    let (mut held, mut unheld) = (0, 0);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        clock.set(begun);
        let faulty = objects.forked();
        let (_, reads) = handle(&faulty, &clock).await;
        let basis = reads.reader().hold().await.unwrap();
        clock.set(begun + MINUTE);
        let (_, other) = handle(&faulty.reborn(), &clock).await;
        change(&other, 50, begun).await;
        other.materialize(false).await.unwrap();
        faulty.die_at(call, takes_place);
        for quarter in 1..=4 {
            clock.set(begun + quarter * 15 * MINUTE);
            reads.log().keep_leases().await.ok();
        }
        let (log, snapshot) = (basis.log().clone(), basis.snapshot().clone());
        drop(basis);
        reads.log().close().await;
        let died = faulty.is_dead();
        let reborn = faulty.reborn();
        let (_, state) = handle(&reborn, &clock).await;
        let found = leases(&state).await;
        // The last one at the hour, if it got so far, counts for an hour and the margin.
        let until = found.first().map_or(0, |lease| lease.until_ms * 1_000);
        for minutes in [0, 30, 69] {
            clock.set(begun + HOUR + minutes * MINUTE);
            change(&state, 100 + minutes, begun).await;
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
            let table = state.snapshot().state().table().unwrap().0.clone();
            let is_whole = state.log().table().missing_file(&log).await.unwrap().is_none()
                && table.missing_file(snapshot.table().unwrap().1).await.unwrap().is_none();
            let counts = until + 10 * MINUTE >= begun + HOUR + minutes * MINUTE;
            assert!(is_whole || !counts, "call {call}, after {minutes} minutes: {found:?}");
        }
        if found.is_empty() {
            unheld += 1
        } else {
            held += 1
        }
        clock.set(begun + 3 * HOUR);
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(files_of_leases(&reborn).await, BTreeSet::new(), "call {call}");
        let report = state.explain_retention().await.unwrap();
        assert_eq!(bytes_by(&report, KeptBy::Leases), 0, "call {call}: {report:?}");
        assert!(state.verify().await.unwrap().is_sound());
        if !died {
            break;
        }
    }
    assert!(held > 3 && unheld > 0, "{held} were held, {unheld} were not");
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_04_the_job_killed_at_any_call_takes_nothing_that_is_held() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let (_, reads) = handle(&objects, &clock).await;
    let basis = reads.reader().hold().await.unwrap();
    let expected = told(&reads, &basis).await.unwrap();
    let (_, writer) = handle(&objects.reborn(), &clock).await;
    for quarter in 1..=15 {
        let now = START + 4 * HOUR + quarter * 15 * MINUTE;
        clock.set(now);
        change(&writer, 50 + quarter, now).await;
        writer.materialize(false).await.unwrap();
        reads.log().keep_leases().await.unwrap();
    }
    let files = basis.snapshot().table().unwrap().1;
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&objects, &clock, call, takes_place).await;
        for _ in 0..2 {
            let table = state.snapshot().state().table().unwrap().0.clone();
            assert_eq!(table.missing_file(files).await.unwrap(), None, "call {call}");
            let log = state.log().table();
            assert_eq!(log.missing_file(basis.log()).await.unwrap(), None, "call {call}");
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        let report = state.explain_retention().await.unwrap();
        assert!(bytes_by(&report, KeptBy::Leases) > 0, "call {call}: {report:?}");
        if !died {
            break;
        }
    }
    writer.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(told(&reads, &basis).await.unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_05_a_lease_taken_at_any_call_of_a_vacuum_is_honoured_by_it_and_the_next() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    for call in 0.. {
        clock.set(START + 4 * HOUR);
        let faulty = objects.forked();
        let (_, reads) = handle(&faulty.reborn(), &clock).await;
        let (_, writer) = handle(&faulty.reborn(), &clock).await;
        let basis = reads.reader().hold().await.unwrap();
        let expected = told(&reads, &basis).await.unwrap();
        clock.set(START + 4 * HOUR + SECOND);
        change(&writer, 50, START + 4 * HOUR).await;
        writer.materialize(false).await.unwrap();
        clock.set(START + 4 * HOUR + 15 * MINUTE);
        let (_, maintainer) = handle(&faulty, &clock).await;
        let (reached, go_on) = faulty.hold_call(call);
        let mut run = tokio::spawn(async move {
            maintainer.maintain(&MaintainStep::ALL, false).await.unwrap();
        });
        let is_raced = tokio::select! {
            told = reached => told.is_ok(),
            ended = &mut run => {
                ended.unwrap();
                false
            }
        };
        let status = basis.hold().unwrap().secure().await;
        assert!(matches!(status, HoldStatus::Leased { .. }), "call {call}: {status:?}");
        if is_raced {
            go_on.send(()).unwrap();
            run.await.unwrap();
        }
        hours_beside(&writer, &reads, &clock, 5..7).await;
        assert_eq!(told(&reads, &basis).await.unwrap(), expected, "call {call}");
        if !is_raced {
            assert!(call > 30, "a run of {call} calls");
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lea_06_a_reader_frozen_at_any_call_knows_whether_it_holds_what_it_reads() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = built(&clock).await;
    let mut lost = 0;
    for (frozen_hours, call) in (0..).flat_map(|call| [(0, call), (3, call)]) {
        clock.set(START + 4 * HOUR);
        let faulty = objects.forked();
        let (_, reads) = handle(&faulty, &clock).await;
        let (_, other) = handle(&faulty.reborn(), &clock).await;
        let basis = reads.reader().hold().await.unwrap();
        let expected = told(&reads, &basis).await.unwrap();
        clock.set(START + 4 * HOUR + 15 * MINUTE);
        change(&other, 50, START + 4 * HOUR).await;
        let (reached, go_on) = faulty.hold_call(call);
        let hold = basis.hold().unwrap().clone();
        let mut secured = tokio::spawn(async move { hold.secure().await });
        let at_once = tokio::select! {
            _ = reached => None,
            status = &mut secured => Some(status.unwrap()),
        };
        if let Some(status) = at_once {
            assert!(call > 2 && matches!(status, HoldStatus::Leased { .. }), "{call}: {status:?}");
            break;
        }
        other.maintain(&MaintainStep::ALL, false).await.unwrap();
        hours(&other, &clock, 5..5 + frozen_hours).await;
        go_on.send(()).unwrap();
        let status = secured.await.unwrap();
        // Reads that find a file gone are refused, whatever is thought of the lease.
        match (told(&reads, &basis).await, &status) {
            (Ok(rows), _) => assert_eq!(rows, expected, "call {call}"),
            (Err(error), HoldStatus::Unheld { .. }) => {
                lost += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            }
            (Err(error), status) => panic!("call {call}: {status:?}, but {error}"),
        }
        let is_held = matches!(status, HoldStatus::Leased { .. });
        assert!(is_held || frozen_hours > 0, "call {call}: {status:?}");
    }
    assert!(lost > 0, "nobody was frozen for too long");
}
