//! Aligned columns, cut to the width of the terminal.
//!
//! The first rows tell the widths; from then on rows are written as they come. Where not all columns fit, the last
//! fields of the value give way first, and a remark says how many are not shown.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::cells::{cell, is_number, printable};
use super::columns::Flat;
use super::{Result, RowWriter};

/// Rows that tell the widths.
const MEASURED_ROWS: usize = 1_000;
/// A column may be made as narrow as this to show more columns.
const CROWDED_WIDTH: usize = 20;
/// A column that is cut shows at least so much.
const MIN_WIDTH: usize = 10;
/// The columns that tell what a row is about.
const LEADING: [&str; 7] = ["key", "op", "event_time", "commit", "late", "app_id", "epoch"];
const GAP: &str = "  ";
const CUT: &str = "…";

pub(super) struct TableWriter {
    flat: Flat,
    width: Option<usize>,
    has_color: bool,
    waiting: Vec<Vec<Option<String>>>,
    layout: Option<Layout>,
}

/// Which columns are shown, and how wide.
struct Layout {
    columns: Vec<(usize, usize)>,
    hidden: usize,
}

impl TableWriter {
    pub(super) fn new(schema: &SchemaRef, width: Option<usize>, has_color: bool) -> Self {
        Self { flat: Flat::new(schema), width, has_color, waiting: Vec::new(), layout: None }
    }

    fn lay_out(&mut self, out: &mut dyn Write) -> Result<()> {
        if self.layout.is_none() {
            let layout = Layout::new(&self.natural_widths(), &self.flat, self.width);
            self.header(out, &layout)?;
            self.layout = Some(layout);
        }
        Ok(())
    }

    fn natural_widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self
            .flat
            .fields
            .iter()
            .map(|field| console::measure_text_width(&printable(field.name())))
            .collect();
        for row in &self.waiting {
            for (width, text) in widths.iter_mut().zip(row) {
                let shown = text.as_deref().map_or(4, console::measure_text_width);
                *width = (*width).max(shown);
            }
        }
        widths
    }

    fn header(&self, out: &mut dyn Write, layout: &Layout) -> Result<()> {
        let names: Vec<Option<String>> =
            self.flat.fields.iter().map(|field| Some(printable(field.name()))).collect();
        let rule: Vec<String> =
            layout.columns.iter().map(|(_, width)| "─".repeat(*width)).collect();
        let line = self.line(&names, layout);
        let (bold, plain) = if self.has_color { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
        writeln!(out, "{bold}{line}{plain}")?;
        Ok(writeln!(out, "{}", rule.join(GAP))?)
    }

    fn line(&self, cells: &[Option<String>], layout: &Layout) -> String {
        let mut line = String::new();
        for (place, (column, width)) in layout.columns.iter().enumerate() {
            if place > 0 {
                line.push_str(GAP);
            }
            let text = cells.get(*column).and_then(Option::as_deref);
            let cut = console::truncate_str(text.unwrap_or("null"), *width, CUT);
            let padding = " ".repeat(width.saturating_sub(console::measure_text_width(&cut)));
            let field = self.flat.fields.get(*column);
            let is_right = field.is_some_and(|field| is_number(field.data_type()));
            let is_last = place + 1 == layout.columns.len();
            if is_right {
                line.push_str(&padding);
            }
            if text.is_none() && self.has_color {
                line.push_str(&format!("\u{1b}[2m{cut}\u{1b}[0m"));
            } else {
                line.push_str(&cut);
            }
            if !is_right && !is_last {
                line.push_str(&padding);
            }
        }
        line
    }

    fn flush(&mut self, out: &mut dyn Write) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(layout) = &self.layout else { return Ok(()) };
        for row in &waiting {
            writeln!(out, "{}", self.line(row, layout))?;
        }
        Ok(())
    }
}

impl RowWriter for TableWriter {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()> {
        let columns = self.flat.columns(batch)?;
        let mut scratch = Vec::new();
        for row in 0..batch.num_rows() {
            let mut cells = Vec::with_capacity(columns.len());
            for column in &columns {
                cells.push(cell(column, row, &mut scratch)?.map(|text| printable(&text)));
            }
            self.waiting.push(cells);
            if self.waiting.len() >= MEASURED_ROWS {
                self.lay_out(out)?;
                self.flush(out)?;
            }
        }
        Ok(())
    }

    fn settle(&mut self, out: &mut dyn Write) -> Result<()> {
        if !self.waiting.is_empty() {
            self.lay_out(out)?;
            self.flush(out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<Option<String>> {
        self.lay_out(out)?;
        self.flush(out)?;
        Ok(self.layout.as_ref().filter(|layout| layout.hidden > 0).map(|layout| {
            let plural = if layout.hidden == 1 { "" } else { "s" };
            format!("{} column{plural} more: --output jsonl or csv shows all", layout.hidden)
        }))
    }
}

impl Layout {
    fn new(natural: &[usize], flat: &Flat, terminal: Option<usize>) -> Self {
        // In a table the value's fields stand behind what tells the row, and before the rest.
        // The columns of a query stay as it has them.
        let is_lead = |column: &usize| {
            !flat.from_value.is_empty()
                && flat
                    .fields
                    .get(*column)
                    .is_some_and(|field| LEADING.contains(&field.name().as_str()))
        };
        let values = flat.from_value.clone();
        let (leading, trailing): (Vec<usize>, Vec<usize>) = (0..values.start).partition(is_lead);
        let lead = leading.len();
        let mut order: Vec<usize> =
            leading.into_iter().chain(values.clone()).chain(trailing).collect();
        let Some(terminal) = terminal else {
            let columns = order.into_iter().map(|column| (column, natural[column])).collect();
            return Self { columns, hidden: 0 };
        };
        let mut widths = natural.to_vec();
        let mut hidden = 0;
        if !values.is_empty() && total(&widths, &order) > terminal {
            // What tells the row stays whole; long texts give way to more fields, and then the last columns go.
            for column in values {
                widths[column] = widths[column].min(CROWDED_WIDTH);
            }
            while total(&widths, &order) > terminal && order.len() > lead + 1 {
                order.pop();
                hidden += 1;
            }
        }
        hidden += shrink(&mut widths, &mut order, terminal);
        widen(&mut widths, natural, &order, terminal);
        Self { columns: order.into_iter().map(|column| (column, widths[column])).collect(), hidden }
    }
}

/// The width of a line.
fn total(widths: &[usize], order: &[usize]) -> usize {
    let gaps = order.len().saturating_sub(1) * GAP.len();
    order.iter().map(|column| widths[*column]).sum::<usize>() + gaps
}

/// Makes the widest columns narrower until all fit, and drops the last ones if even that is not enough.
fn shrink(widths: &mut [usize], order: &mut Vec<usize>, terminal: usize) -> usize {
    let mut hidden = 0;
    while total(widths, order) > terminal {
        let widest = order.iter().copied().max_by_key(|column| widths[*column]);
        match widest {
            Some(column) if widths[column] > MIN_WIDTH => widths[column] -= 1,
            _ if order.len() > 1 => {
                order.pop();
                hidden += 1;
            }
            _ => break,
        }
    }
    hidden
}

/// Gives the room that is left to the columns that were made narrower, the first ones first.
fn widen(widths: &mut [usize], natural: &[usize], order: &[usize], terminal: usize) {
    for column in order {
        let room = terminal.saturating_sub(total(widths, order));
        let wanted = natural[*column].saturating_sub(widths[*column]);
        widths[*column] += wanted.min(room);
    }
}
