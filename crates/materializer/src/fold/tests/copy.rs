//! Copies of ranges of rows, against `concat` of slices.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray, StructArray};
use arrow::compute::concat;

use super::super::copy::{Segment, copy_ranges};
use super::with_seeds;

#[test]
fn ranges_of_every_kind_of_column_are_copied_as_slices_are_joined() {
    with_seeds(40, |random| {
        let mut kinds: Vec<Vec<ArrayRef>> = vec![Vec::new(); 4];
        for source in 0..3 {
            let number =
                |row: usize| (!row.is_multiple_of(source + 2)).then_some((row * 31) as i64);
            let numbers: Vec<Option<i64>> = (0..30).map(number).collect();
            let texts: Vec<Option<String>> = numbers
                .iter()
                .map(|number| number.map(|number| "x".repeat(number as usize % 7)))
                .collect();
            // Slices, so that nothing begins where its buffers do.
            kinds[0].push(Arc::new(Int64Array::from(numbers.clone()).slice(3, 20)));
            kinds[1].push(Arc::new(StringArray::from(texts).slice(4, 20)));
            kinds[2].push(Arc::new(StructArray::new_empty_fields(30, None).slice(5, 20)));
            kinds[3].push(Arc::new(Int64Array::from_iter_values(0..30).slice(6, 20)));
        }
        let segments: Vec<Segment> = (0..1 + random.below(6))
            .map(|_| {
                let start = random.below(20);
                let end = start + 1 + random.below(20 - start);
                Segment { batch: random.below(3), start, end }
            })
            .collect();
        let rows = segments.iter().map(Segment::rows).sum();
        for arrays in &kinds {
            let sources: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            let copied = copy_ranges(&sources, &segments, rows).unwrap();
            let slices: Vec<ArrayRef> =
                segments.iter().map(|of| arrays[of.batch].slice(of.start, of.rows())).collect();
            let slices: Vec<&dyn Array> = slices.iter().map(AsRef::as_ref).collect();
            assert_eq!(&copied, &concat(&slices).unwrap());
        }
    });
}
