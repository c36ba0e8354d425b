#!/usr/bin/env python3
"""Makes mutants of chosen files and shows which of them the tests catch, with one build for all of them.

usage: tests/mutants/run.py [--again] [--unit] [--tests REGEX] [--seconds N] [--jobs N] [GROUP ..]
       tests/mutants/run.py --table         what came of the runs so far, by files
       tests/mutants/run.py --survivors     those that no test caught, and nothing explains

Without a GROUP, all of those below; the end of a file's path stands for its mutants alone; with --unit, unit tests only; with --tests, of `it` only tests whose names match.

`cargo mutants --list` tells the mutants (`cargo install cargo-mutants`). `weave/` puts all of them into a copy of the tree in
target/mutants, where each does nothing unless MUTANT is its number; those that don't compile are left out, as rustc names them. Then
each test is run alone once, which tells how long it takes and which mutants lie on its way. A mutant is run against those tests only:
first the unit tests of these crates, then the tests of `it`, from the shortest on, until one fails or they come to `--seconds`. One that
no test reaches is a survivor without a run.

A run goes on from an earlier one: outcomes lie in target/mutants/outcomes.json, by the mutant's name without its place in the file, and
what was caught is not run again; `--again` forgets them. New tests are measured, known ones are not (delete reach.json for that).
tests/mutants/explained.md names survivors that no test can catch, and why. The tests draw fewer random cases than usual; the
environment may say otherwise. CARGO is the command that builds. The first build takes as long as one from nothing, unless target/debug
is there to begin with.
"""
import argparse, collections, concurrent.futures, contextlib, json, os, pathlib, re
import resource, shutil, signal, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE, WORK = ROOT / "tests/mutants", ROOT / "target/mutants"
TREE, TARGET = WORK / "tree", WORK / "target"
CARGO = os.environ.get("CARGO", "cargo").split()
LOG, FOLD, QUERY = "crates/log/src/", "crates/materializer/src/", "crates/query/src/"
GROUPS = {
    "fold": [FOLD + "fold/*.rs", FOLD + "ranges.rs", LOG + "order.rs"],
    "commit": [LOG + f for f in ("log/commit.rs", "log/stage.rs", "log/growth.rs", "table/commit.rs", "table/follow.rs", "table/gap.rs",
                                 "table/ahead.rs", "table/probe.rs", "table/state.rs", "table/moved.rs", "epoch.rs")],
    "as-of": [QUERY + f for f in ("basis.rs", "horizon.rs", "point.rs", "reader.rs", "tail.rs", "anew.rs")] + [FOLD + "snapshot/bases.rs"],
    "retention": [FOLD + f for f in ("maintain/expire.rs", "maintain/plan.rs", "maintain/retention.rs", "maintain/vacuum.rs",
                                     "snapshot/savepoints.rs", "snapshot/grid.rs")] + [LOG + "table/vacuum.rs", LOG + "table/cleanup.rs", LOG + "expired.rs"],
}
# These measure, or need what a copy of the tree has not.
SKIPPED = re.compile(r"^(git_history|planted|cases::performance|simulation::races|golden::make)")
FEWER = {"ALLUVIUM_CASES": "1", "ALLUVIUM_STEPS": "40", "ALLUVIUM_KILLS": "4"}
lock, RUNNING = threading.Lock(), set()


def read(name, default):
    path = WORK / name
    return json.loads(path.read_text()) if path.exists() else default


def write(name, value):
    path = WORK / (name + ".new")
    path.write_text(json.dumps(value, indent=0))
    path.rename(WORK / name)


def listed(groups):
    """The mutants of groups, each with a name that it keeps when lines move."""
    mutants, seen = [], collections.Counter()
    for group in groups:
        flags = [flag for file in GROUPS[group] for flag in ("-f", file)]
        text = subprocess.run([*CARGO, "mutants", "--list", "--json", *flags], cwd=ROOT, check=True, capture_output=True).stdout
        for mutant in sorted(json.loads(text), key=lambda m: (m["file"], m["span"]["start"]["line"], m["span"]["start"]["column"])):
            name = re.sub(r":\d+:\d+: ", ": ", mutant["name"], count=1)
            seen[name] += 1
            start = mutant["span"]["start"]
            mutants.append({"id": len(mutants), "name": f"{name} #{seen[name]}" if seen[name] > 1 else name, "file": mutant["file"], "genre": mutant["genre"],
                            "replacement": mutant["replacement"], "at": mutant["name"].split(": ")[0], **start})
    return mutants


def copy_tree():
    """Makes the copy what the tree is; a file gets a new time only when its content changes, since cargo goes by times."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True).stdout
    sources = {}
    for name in names.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file():
            sources[name] = path.read_bytes()
    return sources


def lay(sources):
    for name, content in sources.items():
        path = TREE / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            shutil.copymode(ROOT / name, path)


def build(mutants):
    """Weaves and builds until it compiles; returns the programs, and why each mutant that is not in them was left out."""
    left_out = {m["id"]: read("left_out.json", {})[m["name"]] for m in mutants if m["name"] in read("left_out.json", {})}
    weave = ["--manifest-path", str(HERE / "weave/Cargo.toml"), "--target-dir", str(WORK / "weave")]
    subprocess.run([*CARGO, "build", "--quiet", *weave], check=True)
    if not TARGET.exists() and (ROOT / "target/debug").exists():
        TARGET.mkdir(parents=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(ROOT / "target/debug"), str(TARGET / "debug")], check=True)
    plain, scratch = copy_tree(), WORK / "woven"
    while True:
        shutil.rmtree(scratch, ignore_errors=True)
        for name in {m["file"] for m in mutants} | {m["file"].split("/src/")[0] + "/src/lib.rs" for m in mutants}:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(plain[name])
        chosen = json.dumps([m for m in mutants if m["id"] not in left_out])
        told = subprocess.run([WORK / "weave/debug/alluvium-mutants", scratch], input=chosen, text=True, check=True, capture_output=True).stdout
        left_out.update({int(line.split(" ", 1)[0]): line.split(" ", 1)[1] for line in told.splitlines()})
        lay({**plain, **{str(p.relative_to(scratch)): p.read_bytes() for p in scratch.rglob("*.rs")}})
        command = [*CARGO, "test", "--workspace", "--lib", "--test", "it", "--no-run", "--message-format=json", "--target-dir", str(TARGET)]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        unviable = {i for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error" for i in blamed(m["message"])}
        write("left_out.json", {**read("left_out.json", {}), **{m["name"]: left_out[m["id"]] for m in mutants if m["id"] in left_out}})
        if done.returncode == 0:
            programs = {m["target"]["name"]: m["executable"] for m in messages if m["reason"] == "compiler-artifact" and m["executable"] and m["profile"]["test"]}
            return programs, left_out
        if not unviable - left_out.keys():
            rendered = [m["message"]["rendered"] for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error"]
            sys.exit("\n".join(rendered[:5]) + done.stderr[-3000:] + "\nmutants: the copy does not build")
        print(f"mutants: {len(unviable)} do not compile", flush=True)
        left_out.update({i: "unviable" for i in unviable})


def blamed(message):
    """The mutants that an error is about: the last ones that begin before the places that it marks."""
    found = set()
    for span in message["spans"]:
        if span["is_primary"] and (TREE / span["file_name"]).exists():
            before = (TREE / span["file_name"]).read_bytes()[: span["byte_start"]].decode(errors="ignore")
            numbers = re.findall(r"woven::on\((\d+)\)", before)
            found.update(int(n) for n in numbers[-1:])
    return found


def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setsid()


def run(program, tests, seconds, variables):
    """Runs tests of a program until one fails: `passed`, `timed out`, or the test that failed; and the seconds that it took."""
    folder, began, failed = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", WORK / "tmp")), time.monotonic(), None
    os.chmod(folder, 0o777)
    environment = {**FEWER, **os.environ, "TMPDIR": folder, **variables}
    command = [program, "--exact", "--test-threads=1", *tests]
    process = subprocess.Popen(command, cwd=folder_of(program), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL, preexec_fn=limit, text=True, errors="replace")
    RUNNING.add(process.pid)
    late = []

    def watch():
        timer = threading.Timer(seconds, lambda: (late.append(True), os.killpg(process.pid, signal.SIGKILL)))
        timer.daemon = True
        timer.start()
        return timer

    timer = watch()
    for line in process.stdout:
        timer.cancel()
        if match := re.search(r"^test (\S+).* \.\.\. .*FAILED$", line):
            failed = match[1]
            break
        timer = watch()
    timer.cancel()
    # What it has started goes with it.
    with contextlib.suppress(ProcessLookupError):
        if failed:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        os.killpg(process.pid, signal.SIGKILL)
    RUNNING.discard(process.pid)
    shutil.rmtree(folder, ignore_errors=True)
    status = "timed out" if late else failed or ("passed" if status == 0 else f"the program ended with {status}")
    return status, time.monotonic() - began


def folder_of(program):
    short = re.sub(r"-[0-9a-f]+$", "", pathlib.Path(program).name).replace("_", "-").removeprefix("alluvium-")
    return next((TREE / path for path in (f"crates/{short}", short) if (TREE / path).exists()), TREE / "tests")


def measure(programs, mutants, jobs, wanted):
    """What each test reaches, by the names of mutants, and the seconds that it takes."""
    reach, names = read("reach.json", {}), {m["id"]: m["name"] for m in mutants}

    def one(target, test):
        with tempfile.NamedTemporaryFile(dir=WORK / "tmp") as seen:
            outcome, spent = run(programs[target], [test], 100, {"MUTANTS_SEEN": seen.name})
            numbers = {int(line) for line in seen.read().decode().split() if line}
        with lock:
            reach[f"{target} {test}"] = {"outcome": outcome, "seconds": round(spent, 2), "reached": sorted(names[n] for n in numbers)}
            if len(reach) % 50 == 0:
                write("reach.json", reach)
                print(f"mutants: {len(reach)} tests measured", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for target, program in programs.items():
            told = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
            ignored = subprocess.run([program, "--list", "--ignored"], capture_output=True, text=True, check=True).stdout.split("\n")
            tests = [line.removesuffix(": test") for line in told.splitlines() if line.endswith(": test") and line not in ignored]
            for test in tests:
                if f"{target} {test}" not in reach and (target != "it" or (re.search(wanted, test) and not SKIPPED.match(test))):
                    pool.submit(one, target, test)
    write("reach.json", reach)
    for name, found in reach.items():
        if found["outcome"] != "passed":
            print(f"mutants: without any mutant, {name}: {found['outcome']}; it is not used", flush=True)
    return {name: found for name, found in reach.items() if found["outcome"] == "passed" and name.split()[0] in programs}


def outcome_of(mutant, programs, reach, seconds):
    """Runs the tests that reach a mutant: in portions that take longer and longer."""
    by_target = collections.defaultdict(list)
    for name, found in reach.items():
        if mutant["name"] in found["reached"]:
            target, test = name.split(" ", 1)
            by_target[target].append((found["seconds"], test))
    if not by_target:
        return {"outcome": "not reached"}
    own, portions = "alluvium_" + mutant["file"].split("/")[1], []
    for target in sorted(by_target, key=lambda target: (target == "it", target != own, target)):
        taken, fresh = 0, True
        for spent, test in sorted(by_target[target]):
            if taken + spent > seconds and portions:
                break
            if fresh or portions[-1][1] > max(2, taken / 2):
                portions.append([target, 0, [], 0])
            portions[-1][1] += spent
            portions[-1][2].append(test)
            portions[-1][3], taken, fresh = spent, taken + spent, False
    ran, total = 0, 0
    for target, _, tests, longest in portions:
        found, spent = run(programs[target], tests, 10 + 8 * longest, {"MUTANT": str(mutant["id"])})
        ran, total = ran + len(tests), total + spent
        if found == "timed out":
            return {"outcome": "timed out", "by": f"{target}: {tests[0]} ..", "seconds": round(total, 1)}
        if found != "passed":
            return {"outcome": "caught by `it`" if target == "it" else "caught by unit tests", "by": f"{target} {found}", "seconds": round(total, 1)}
    return {"outcome": "survived", "ran": ran, "of": sum(map(len, by_target.values())), "seconds": round(total, 1)}


def explained():
    """The names in explained.md, where `…` stands for any text."""
    path = HERE / "explained.md"
    names = re.findall(r"^\s*\* `(.+?)`$", path.read_text(), re.M) if path.exists() else []
    return {name: re.compile(".*".join(map(re.escape, name.split("…")))) for name in names}


def report(only_survivors):
    outcomes, known = read("outcomes.json", {}), explained()
    counts, used = collections.defaultdict(collections.Counter), set()
    for name, found in outcomes.items():
        kind = found["outcome"]
        if kind in ("survived", "not reached"):
            why = [pattern for pattern, regex in known.items() if regex.fullmatch(name)]
            used.update(why)
            kind = "explained" if why else "surviving"
        counts[found["file"]][kind] += 1
        if only_survivors and kind == "surviving":
            print(found["at"], name, {k: v for k, v in found.items() if k not in ("file", "at")})
    kinds = ["unviable", "not woven", "caught by unit tests", "caught by `it`", "timed out", "explained", "surviving"]
    if not only_survivors:
        print("| file | mutants | " + " | ".join(kinds) + " |\n|---|" + "---|" * (len(kinds) + 1))
        for file, of in [*sorted(counts.items()), ("all", sum(counts.values(), collections.Counter()))]:
            print(f"| `{file}` | {sum(of.values())} | " + " | ".join(str(of[kind]) for kind in kinds) + " |")
    for name in known.keys() - used:
        print(f"mutants: explained.md has what is no survivor: {name}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    for flag in ("--again", "--unit", "--table", "--survivors"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--tests", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("groups", nargs="*", default=[])
    chosen = parser.parse_args()
    if chosen.table or chosen.survivors:
        return report(chosen.survivors)
    # Whoever ends this ends what it has started: the tests have groups of their own.
    signal.signal(signal.SIGTERM, lambda *_: ([os.killpg(pid, signal.SIGKILL) for pid in list(RUNNING)], os._exit(1)))
    shutil.rmtree(WORK / "tmp", ignore_errors=True)
    (WORK / "tmp").mkdir(parents=True)
    # All groups are woven whichever are run, so that there is one build.
    mutants, groups = listed(GROUPS), chosen.groups or list(GROUPS)
    programs, left_out = build(mutants)
    wanted = {"alluvium_" + m["file"].split("/")[1] for m in mutants} | ({"it"} if not chosen.unit else set())
    programs = {target: program for target, program in programs.items() if target in wanted}
    reach = measure(programs, mutants, chosen.jobs, chosen.tests)
    outcomes = {} if chosen.again else read("outcomes.json", {})
    outcomes = {m["name"]: outcomes[m["name"]] for m in mutants if m["name"] in outcomes}
    patterns = [pattern for group in groups for pattern in GROUPS.get(group, [group])]

    def one(mutant):
        if mutant["id"] in left_out:
            reason = left_out[mutant["id"]]
            # `||` and `let` don't go together in a condition. What is returned as `impl ..` can't be of two types.
            is_unviable = reason == "beside let" or (reason == "unviable" and "-> impl " not in mutant["name"])
            found = {"outcome": "unviable" if is_unviable else "not woven"}
        else:
            found = outcome_of(mutant, programs, reach, chosen.seconds)
        with lock:
            outcomes[mutant["name"]] = {**found, "file": mutant["file"], "at": mutant["at"]}
            write("outcomes.json", outcomes)
            if found["outcome"] in ("survived", "not reached"):
                print(mutant["at"], mutant["name"].split(": ", 1)[1], found, flush=True)

    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        todo = [m for m in mutants if any(pathlib.PurePath(m["file"]).match(pattern) for pattern in patterns)
                and outcomes.get(m["name"], {}).get("outcome", "") in ("", "survived", "not reached", "unviable", "not woven")]
        for done in [pool.submit(one, mutant) for mutant in todo]:
            done.result()
    report(False)


main()
