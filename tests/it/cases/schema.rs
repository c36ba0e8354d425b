//! SCH-*: a state's fields may grow; what does not fit is refused before a byte is written.

use std::sync::Arc;

use alluvium::{ErrorKind, OrderBy, Point, RawState};
use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, ListArray, ListBuilder,
    MapBuilder, NullArray, StringArray, StringBuilder, StructArray, UInt64Array, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int64Type};

use crate::support::delta;
use crate::support::stores::{
    Home, START, assert_sound, create, n_fields, refused, scan_rows, sql_numbers, sql_texts,
    upserts, value_batch,
};

fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// A field of the live rows, in order of keys.
async fn column(state: &RawState, point: Point, path: &[&str]) -> ArrayRef {
    let batches = scan_rows(state, point).await;
    let batch = arrow::compute::concat_batches(batches[0].schema_ref(), &batches).unwrap();
    let mut array = batch.column_by_name("state_value").unwrap().clone();
    for name in path {
        let child = array.as_struct().column_by_name(name).unwrap().clone();
        array = arrow::compute::nullif(&child, &arrow::compute::is_null(&array).unwrap()).unwrap();
    }
    array
}

async fn numbers(state: &RawState, point: Point, path: &[&str]) -> Vec<Option<i64>> {
    column(state, point, path).await.as_primitive::<Int64Type>().iter().collect()
}

async fn empty(home: &Home, fields: Fields) -> RawState {
    create(&home.open().await, "s", &fields, OrderBy::Version).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_03_a_field_added_first_reads_as_null_in_older_rows_also_inside_a_struct() {
    let home = Home::new();
    let inner = Fields::from(vec![Field::new("f", DataType::Int64, true)]);
    let state = empty(
        &home,
        Fields::from(vec![
            Field::new("f", DataType::Int64, true),
            Field::new("o", DataType::Struct(inner), true),
        ]),
    )
    .await;
    let object = |columns: Vec<(&str, ArrayRef)>| -> ArrayRef {
        Arc::new(StructArray::try_from(columns).unwrap())
    };
    let old = |n: i64| vec![("f", ints(&[n])), ("o", object(vec![("f", ints(&[n]))]))];
    let first = state.append(&upserts(&["1"], 1, old(1))).await.unwrap();
    state.materialize(false).await.unwrap();
    let grown = vec![
        ("new", ints(&[20])),
        ("o", object(vec![("new", ints(&[20])), ("f", ints(&[2]))])),
        ("f", ints(&[2])),
    ];
    state.append(&upserts(&["2"], 2, grown)).await.unwrap();
    state.materialize(false).await.unwrap();
    state.append(&upserts(&["3"], 3, old(3))).await.unwrap();
    for step in 0..4 {
        for path in [vec!["f"], vec!["o", "f"]] {
            assert_eq!(
                numbers(&state, Point::LATEST, &path).await,
                [Some(1), Some(2), Some(3)],
                "step {step}"
            );
        }
        for path in [vec!["new"], vec!["o", "new"]] {
            assert_eq!(
                numbers(&state, Point::LATEST, &path).await,
                [None, Some(20), None],
                "step {step}"
            );
            assert_eq!(numbers(&state, Point::at_commit(first.commit), &path).await, [None]);
        }
        match step {
            0 => assert!(delta::optimize(&home.table("s", "log"), 1 << 20).await),
            1 => drop(state.materialize(false).await.unwrap()),
            _ => assert_sound(&state).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_04_a_required_field_is_required_of_upserts_and_not_of_deletes() {
    let home = Home::new();
    let fields = Fields::from(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("x", DataType::Int64, true),
    ]);
    let state = empty(&home, fields.clone()).await;
    state.append(&upserts(&["a"], 1, vec![("id", ints(&[1])), ("x", ints(&[1]))])).await.unwrap();
    let gone = new_null_array(&DataType::Struct(fields), 1);
    state.append(&value_batch(["a"], [2], &[START], gone)).await.unwrap();
    let null_id: ArrayRef = Arc::new(Int64Array::new_null(1));
    let wrong = upserts(&["b"], 1, vec![("id", null_id), ("x", ints(&[1]))]);
    refused(&state, state.append(&wrong), ErrorKind::InvalidInput, &["state_value.id", "\"b\""])
        .await;
    let lacking = upserts(&["b"], 1, vec![("x", ints(&[1]))]);
    refused(&state, state.append(&lacking), ErrorKind::InvalidInput, &["state_value.id"]).await;
    assert_eq!(numbers(&state, Point::at_version(1), &["id"]).await, [Some(1)]);
    assert!(scan_rows(&state, Point::LATEST).await.is_empty());
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_04_a_required_field_inside_a_list_of_structs_is_required_too() {
    let home = Home::new();
    let item = Fields::from(vec![Field::new("sku", DataType::Int64, false)]);
    let element = Arc::new(Field::new("element", DataType::Struct(item.clone()), true));
    let state =
        empty(&home, Fields::from(vec![Field::new("items", DataType::List(element), true)])).await;
    let loose = Fields::from(vec![Field::new("sku", DataType::Int64, true)]);
    let list = |skus: Vec<Option<i64>>| -> ArrayRef {
        let rows = skus.len();
        let skus: ArrayRef = Arc::new(Int64Array::from(skus));
        let items: ArrayRef = Arc::new(StructArray::new(loose.clone(), vec![skus], None));
        let field = Arc::new(Field::new("item", DataType::Struct(loose.clone()), true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths([rows]), items, None))
    };
    state.append(&upserts(&["a"], 1, vec![("items", list(vec![Some(1), Some(2)]))])).await.unwrap();
    let wrong = upserts(&["b"], 1, vec![("items", list(vec![Some(1), None]))]);
    refused(&state, state.append(&wrong), ErrorKind::InvalidInput, &["items", "sku", "\"b\""])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_05_a_value_of_another_type_is_kept_exactly_or_refused_with_path_types_and_row() {
    let home = Home::new();
    let fields = Fields::from(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("m", DataType::Int32, true),
        Field::new("d", DataType::Float64, true),
    ]);
    let state = empty(&home, fields).await;
    let exact = (1_i64 << 53) + 1;
    state.append(&upserts(&["a"], 1, vec![("n", ints(&[exact]))])).await.unwrap();
    let cases: Vec<(&str, ArrayRef, &[&str])> = vec![
        (
            "n",
            Arc::new(Float64Array::from(vec![1.0, 1.5])),
            &["state_value.n", "Int64", "Float64", "row 0"],
        ),
        ("n", Arc::new(StringArray::from(vec!["2", "3"])), &["state_value.n", "Int64", "Utf8"]),
        (
            "n",
            Arc::new(UInt64Array::from(vec![1, 1 << 63])),
            &["state_value.n", "Int64", "UInt64", "row 1"],
        ),
        ("m", ints(&[1, 2_147_483_648]), &["state_value.m", "Int32", "Int64", "row 1"]),
        ("d", ints(&[1, exact]), &["state_value.d", "Float64", "Int64", "row 1"]),
    ];
    for (name, values, names) in cases {
        let wrong = upserts(&["x", "y"], 1, vec![(name, values)]);
        refused(&state, state.append(&wrong), ErrorKind::InvalidInput, names).await;
    }
    let narrow: ArrayRef = Arc::new(Int32Array::from(vec![7]));
    state
        .append(&upserts(&["b"], 1, vec![("n", narrow), ("d", ints(&[8])), ("m", ints(&[9]))]))
        .await
        .unwrap();
    assert_eq!(numbers(&state, Point::LATEST, &["n"]).await, [Some(exact), Some(7)]);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_05_two_writers_that_add_one_field_with_two_types_do_not_make_the_log_unreadable() {
    let home = Home::new();
    let first = empty(&home, n_fields()).await;
    let second = home.open().await.raw_state("s").await.unwrap();
    let text: ArrayRef = Arc::new(StringArray::from(vec!["text"]));
    first.append(&upserts(&["a"], 1, vec![("x", text)])).await.unwrap();
    // This handle has not heard of the new field.
    let outcome = second.append(&upserts(&["b"], 2, vec![("x", ints(&[1]))])).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("state_value.x"), "{error}");
    for state in [&first, &second] {
        assert_eq!(
            scan_rows(state, Point::LATEST).await.iter().map(|b| b.num_rows()).sum::<usize>(),
            1
        );
    }
    assert_sound(&first).await;
    // The same for a field that differs only in case.
    let upper = upserts(&["c"], 3, vec![("X", ints(&[1]))]);
    refused(&second, second.append(&upper), ErrorKind::InvalidInput, &["\"x\"", "\"X\""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_06_names_in_mixed_case_are_kept_and_can_be_asked_for_in_sql() {
    let home = Home::new();
    let store = home.open().await;
    let fields = Fields::from(vec![
        Field::new("submittedAt", DataType::Int64, false),
        Field::new("URL", DataType::Utf8, true),
        Field::new("ordinary", DataType::Int32, true),
    ]);
    let state = create(&store, "s", &fields, OrderBy::Version).await;
    for version in [1, 2] {
        let url: ArrayRef = Arc::new(StringArray::from(vec!["u1", "u2"]));
        let ordinary: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
        let columns =
            vec![("submittedAt", ints(&[version, 20])), ("URL", url), ("ordinary", ordinary)];
        state.append(&upserts(&["a", "b"], version, columns)).await.unwrap();
        state.materialize(false).await.unwrap();
    }
    delta::optimize(&home.table("s", "log"), 1 << 20).await;
    assert_eq!(sql_numbers(&store, "SELECT submittedAt FROM s WHERE submittedAt > 10").await, [20]);
    assert_eq!(
        sql_texts(&store, "SELECT URL FROM s WHERE \"submittedAt\" = 2 ORDER BY URL").await,
        ["u1"]
    );
    assert_eq!(
        sql_numbers(
            &store,
            "SELECT state_value.submittedAt FROM log.s WHERE state_key = 'a' ORDER BY 1"
        )
        .await,
        [1, 2]
    );
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_07_odd_field_names_are_kept_apart_or_refused_by_a_clear_rule() {
    let home = Home::new();
    let store = home.open().await;
    let names = ["y--1", "a.b", "quo\"te", "back`tick", "日本"];
    let mut fields: Vec<Field> =
        names.iter().map(|name| Field::new(*name, DataType::Int64, true)).collect();
    let inner = Fields::from(vec![Field::new("b", DataType::Int64, true)]);
    fields.push(Field::new("a", DataType::Struct(inner), true));
    let state = create(&store, "s", &Fields::from(fields), OrderBy::Version).await;
    let nested: ArrayRef = Arc::new(StructArray::try_from(vec![("b", ints(&[3]))]).unwrap());
    let mut columns: Vec<(&str, ArrayRef)> = vec![("a", nested)];
    columns.extend(names.iter().enumerate().map(|(n, name)| (*name, ints(&[10 + n as i64]))));
    state.append(&upserts(&["k"], 1, columns)).await.unwrap();
    for step in 0..3 {
        for (n, name) in names.iter().enumerate() {
            assert_eq!(
                numbers(&state, Point::LATEST, &[name]).await,
                [Some(10 + n as i64)],
                "step {step}"
            );
            let quoted = name.replace('"', "\"\"");
            assert_eq!(
                sql_numbers(&store, &format!("SELECT \"{quoted}\" FROM s")).await,
                [10 + n as i64]
            );
        }
        assert_eq!(numbers(&state, Point::LATEST, &["a", "b"]).await, [Some(3)]);
        state.materialize(step == 1).await.unwrap();
    }
    for illegal in ["with space", "", "a,b", "a;b", "a{b", "a(b", "a\nb", "a\tb", "a=b"] {
        let wrong = upserts(&["k"], 2, vec![(illegal, ints(&[1]))]);
        let name = format!("{illegal:?}");
        let names: &[&str] = if illegal.is_empty() { &["empty name"] } else { &[&name] };
        refused(&state, state.append(&wrong), ErrorKind::InvalidInput, names).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_08_names_that_differ_only_in_case_are_refused_naming_both() {
    let home = Home::new();
    let state = empty(&home, Fields::empty()).await;
    state.append(&upserts(&["a"], 1, vec![("colUtc", ints(&[1]))])).await.unwrap();
    let names: &[&str] = &["\"colUtc\"", "\"colUTC\""];
    let second = upserts(&["b"], 2, vec![("colUTC", ints(&[2]))]);
    refused(&state, state.append(&second), ErrorKind::InvalidInput, names).await;
    let both = upserts(&["b"], 2, vec![("colUtc", ints(&[2])), ("colUTC", ints(&[2]))]);
    refused(&state, state.append(&both), ErrorKind::InvalidInput, names).await;
    let nested: ArrayRef =
        Arc::new(StructArray::try_from(vec![("p", ints(&[1])), ("P", ints(&[2]))]).unwrap());
    let inside = upserts(&["b"], 2, vec![("o", nested)]);
    refused(
        &state,
        state.append(&inside),
        ErrorKind::InvalidInput,
        &["\"p\"", "\"P\"", "state_value.o"],
    )
    .await;
    assert_eq!(delta::open(&home.table("s", "log")).await.version(), Some(1));
}

fn tags(rows: &[Option<&[&str]>]) -> ArrayRef {
    let mut list = ListBuilder::new(StringBuilder::new());
    for row in rows {
        list.append_option(
            row.map(|tags| tags.iter().map(|tag| Some(tag.to_string())).collect::<Vec<_>>()),
        );
    }
    Arc::new(list.finish())
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_09_an_empty_list_is_not_null_and_a_field_without_a_type_is_left_out_until_it_has_one()
{
    let home = Home::new();
    let state = empty(&home, Fields::empty()).await;
    let untyped = Arc::new(Field::new("item", DataType::Null, true));
    let nothing: ArrayRef = Arc::new(ListArray::new(
        untyped,
        OffsetBuffer::from_lengths([0]),
        Arc::new(NullArray::new(0)),
        None,
    ));
    let only_null = upserts(&["a"], 1, vec![("o", Arc::new(NullArray::new(1)))]);
    refused(&state, state.append(&only_null), ErrorKind::InvalidInput, &["declare"]).await;
    let only_empty = upserts(&["a"], 1, vec![("tags", nothing.clone())]);
    refused(
        &state,
        state.append(&only_empty),
        ErrorKind::Unsupported,
        &["state_value.tags", "declare"],
    )
    .await;
    assert!(state.definition().fields.is_empty(), "no field is stuck without a type");
    state
        .append(&upserts(
            &["b", "c", "d"],
            3,
            vec![("tags", tags(&[Some(&["x"]), Some(&[]), None]))],
        ))
        .await
        .unwrap();
    let known = state
        .append(&upserts(&["e"], 6, vec![("tags", nothing), ("o", Arc::new(NullArray::new(1)))]))
        .await;
    known.unwrap();
    for _ in 0..2 {
        let column = column(&state, Point::LATEST, &["tags"]).await;
        let lengths: Vec<Option<usize>> =
            column.as_list::<i32>().iter().map(|list| list.map(|list| list.len())).collect();
        assert_eq!(lengths, [Some(1), Some(0), None, Some(0)]);
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_10_new_fields_and_new_keys_in_one_batch_leave_the_other_rows_whole() {
    let home = Home::new();
    let state = empty(&home, n_fields()).await;
    let keys: Vec<String> = (0..100).map(|n| format!("k{n:03}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    state
        .append(&upserts(&keys, 1, vec![("n", ints(&(0..100).collect::<Vec<_>>()))]))
        .await
        .unwrap();
    state.materialize(false).await.unwrap();
    let ten = ints(&[7; 10]);
    state
        .append(&upserts(&keys[..10], 200, vec![("n", ten.clone()), ("added", ten)]))
        .await
        .unwrap();
    state.materialize(false).await.unwrap();
    let added = numbers(&state, Point::LATEST, &["added"]).await;
    assert_eq!(added.len(), 100);
    assert_eq!(added.iter().filter(|value| value.is_none()).count(), 90);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_11_nulls_inside_maps_and_lists_that_are_declared_without_are_refused() {
    let home = Home::new();
    let parts = Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, false),
    ]);
    let entries = Arc::new(Field::new("key_value", DataType::Struct(parts), false));
    let element = Arc::new(Field::new("element", DataType::Utf8, false));
    let state = empty(
        &home,
        Fields::from(vec![
            Field::new("m", DataType::Map(entries, false), true),
            Field::new("l", DataType::List(element), true),
        ]),
    )
    .await;
    let map = |value: Option<&str>| -> ArrayRef {
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        map.keys().append_value("a");
        map.values().append_option(value);
        map.append(true).unwrap();
        Arc::new(map.finish())
    };
    state
        .append(&upserts(&["ok"], 1, vec![("m", map(Some("x"))), ("l", tags(&[Some(&["x"])]))]))
        .await
        .unwrap();
    let wrong = upserts(&["bad"], 1, vec![("m", map(None))]);
    refused(&state, state.append(&wrong), ErrorKind::InvalidInput, &["state_value.m", "\"bad\""])
        .await;
    let mut list = ListBuilder::new(StringBuilder::new());
    list.append_value([None::<&str>]);
    let wrong = upserts(&["bad"], 1, vec![("l", Arc::new(list.finish()))]);
    refused(&state, state.append(&wrong), ErrorKind::InvalidInput, &["state_value.l", "\"bad\""])
        .await;
    assert_eq!(scan_rows(&state, Point::LATEST).await[0].num_rows(), 1);
    assert_sound(&state).await;
}
