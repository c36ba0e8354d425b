//! A chart of lines as SVG: no script, text as text, colours for light and for dark pages.

use std::fmt::Write;

use crate::Outcome;
use crate::axis::{Axis, Scale, short};

/// Lines over one axis of sizes.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: (String, Scale),
    pub(crate) y: (String, Scale),
    pub(crate) series: Vec<Series>,
}

/// One line: its points by `x`; where a value is missing, it is interrupted.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, Option<f64>)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 60.0;
/// A line of more points than this has no markers.
const MARKED_POINTS: usize = 60;
/// Of each line in turn; told apart also by people who see few colours, as the markers are.
const LIGHT: [&str; 4] = ["#0b62c4", "#c2410c", "#0f7b55", "#9333a8"];
const DARK: [&str; 4] = ["#6cb6ff", "#ff9a5c", "#4fd1a1", "#d8a0ff"];

impl Chart {
    /// The file's text.
    pub(crate) fn svg(&self) -> Outcome<String> {
        let (x, y) = self.axes()?;
        let mut svg = self.head();
        draw_axes(&mut svg, &x, &y);
        self.draw_labels(&mut svg);
        for (index, series) in self.series.iter().enumerate() {
            draw_series(&mut svg, index % LIGHT.len(), series, &x, &y);
        }
        svg.push_str("</svg>\n");
        Ok(svg)
    }

    fn axes(&self) -> Outcome<(Axis, Axis)> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let refused = |axis: &str, (name, scale): &(String, Scale)| {
            format!(
                "{:?}: the {axis} axis ({name}) is {scale:?} and a value has no place on it",
                self.title
            )
        };
        let x =
            Axis::of(self.x.1, points().map(|&(x, _)| x)).ok_or_else(|| refused("x", &self.x))?;
        let y = Axis::of(self.y.1, points().filter_map(|&(_, y)| y))
            .ok_or_else(|| refused("y", &self.y))?;
        Ok((x, y))
    }

    fn head(&self) -> String {
        let title = escaped(&self.title);
        let style = |colours: &[&str; 4], page: &str, text: &str, muted: &str, grid: &str| {
            let mut css = format!(
                ".page{{fill:{page}}}.text{{fill:{text}}}.muted{{fill:{muted}}}.grid{{stroke:{grid}}}.axis{{stroke:{muted}}}"
            );
            for (index, colour) in colours.iter().enumerate() {
                add(
                    &mut css,
                    format_args!(".line{index}{{stroke:{colour}}}.mark{index}{{fill:{colour}}}"),
                );
            }
            css
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\" aria-label=\"{title}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
             <title>{title}</title>\n\
             <style>{}path{{fill:none;stroke-width:2}}@media (prefers-color-scheme: dark){{{}}}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n\
             <text class=\"text\" x=\"{LEFT}\" y=\"28\" font-size=\"16\" font-weight=\"600\">{title}</text>\n",
            style(&LIGHT, "#ffffff", "#1f2328", "#59636e", "#dfe3e8"),
            style(&DARK, "#0d1117", "#e6edf3", "#9198a1", "#2a313a"),
        )
    }

    /// The names of the axes, and of the lines in a row below the title.
    fn draw_labels(&self, svg: &mut String) {
        let (middle, bottom) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0);
        let name = escaped(&self.x.0);
        add(
            svg,
            format_args!(
                "<text class=\"text\" x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{name}</text>\n"
            ),
        );
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let name = escaped(&self.y.0);
        add(
            svg,
            format_args!(
                "<text class=\"text\" transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">{name}</text>\n"
            ),
        );
        let mut left = LEFT;
        for (index, series) in self.series.iter().enumerate() {
            let index = index % LIGHT.len();
            add(svg, format_args!("<path class=\"line{index}\" d=\"M{left} 52h22\"/>\n"));
            svg.push_str(&marker(index, left + 11.0, 52.0, ""));
            let (text, label) = (left + 28.0, escaped(&series.label));
            add(svg, format_args!("<text class=\"text\" x=\"{text}\" y=\"56.5\">{label}</text>\n"));
            // About the width of a letter.
            left = text + series.label.chars().count() as f64 * 7.2 + 18.0;
        }
    }
}

fn across(axis: &Axis, value: f64) -> f64 {
    rounded(LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT))
}

fn up(axis: &Axis, value: f64) -> f64 {
    rounded(HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM))
}

fn rounded(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

fn draw_axes(svg: &mut String, x: &Axis, y: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for &tick in &y.ticks {
        let (at, label) = (up(y, tick), short(tick));
        add(
            svg,
            format_args!(
                "<path class=\"grid\" style=\"stroke-width:1\" d=\"M{LEFT} {at}H{right}\"/>\n"
            ),
        );
        let (left, base) = (LEFT - 8.0, at + 4.5);
        add(
            svg,
            format_args!(
                "<text class=\"muted\" x=\"{left}\" y=\"{base}\" text-anchor=\"end\">{label}</text>\n"
            ),
        );
    }
    for &tick in &x.ticks {
        let (at, label, base) = (across(x, tick), short(tick), bottom + 20.0);
        add(
            svg,
            format_args!(
                "<path class=\"axis\" style=\"stroke-width:1\" d=\"M{at} {bottom}v5\"/>\n"
            ),
        );
        add(
            svg,
            format_args!(
                "<text class=\"muted\" x=\"{at}\" y=\"{base}\" text-anchor=\"middle\">{label}</text>\n"
            ),
        );
    }
    add(
        svg,
        format_args!(
            "<path class=\"axis\" style=\"stroke-width:1\" d=\"M{LEFT} {bottom}H{right}\"/>\n"
        ),
    );
}

fn draw_series(svg: &mut String, index: usize, series: &Series, x: &Axis, y: &Axis) {
    let (mut path, mut is_drawing) = (String::new(), false);
    for &(at, value) in &series.points {
        if let Some(value) = value {
            let command = if is_drawing { 'L' } else { 'M' };
            add(&mut path, format_args!("{command}{} {}", across(x, at), up(y, value)));
        }
        is_drawing = value.is_some();
    }
    add(svg, format_args!("<path class=\"line{index}\" d=\"{path}\"/>\n"));
    if series.points.len() > MARKED_POINTS {
        return;
    }
    for &(at, value) in &series.points {
        if let Some(value) = value {
            let said = format!("{}: {} at {}", series.label, short(value), short(at));
            svg.push_str(&marker(index, across(x, at), up(y, value), &said));
        }
    }
}

/// A shape of its own for each line, with what a pointer on it is told.
fn marker(index: usize, x: f64, y: f64, said: &str) -> String {
    let title =
        if said.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(said)) };
    let class = format!("class=\"mark{index}\"");
    match index {
        0 => format!("<circle {class} cx=\"{x}\" cy=\"{y}\" r=\"4\">{title}</circle>\n"),
        1 => {
            let (left, top) = (x - 3.75, y - 3.75);
            format!(
                "<rect {class} x=\"{left}\" y=\"{top}\" width=\"7.5\" height=\"7.5\">{title}</rect>\n"
            )
        }
        2 => {
            let (left, right, top, base) = (x - 5.0, x + 5.0, y - 5.0, y + 4.0);
            format!(
                "<polygon {class} points=\"{left},{base} {right},{base} {x},{top}\">{title}</polygon>\n"
            )
        }
        _ => {
            let (left, right, top, base) = (x - 5.0, x + 5.0, y - 5.0, y + 5.0);
            format!(
                "<polygon {class} points=\"{left},{y} {x},{top} {right},{y} {x},{base}\">{title}</polygon>\n"
            )
        }
    }
}

fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a text can't fail.
    text.write_fmt(what).ok();
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chart(scale: Scale, series: &[&[(f64, Option<f64>)]]) -> Chart {
        let series = series
            .iter()
            .map(|points| Series { label: "a <b>".to_owned(), points: points.to_vec() })
            .collect();
        Chart {
            title: "Time & size".to_owned(),
            x: ("keys".to_owned(), Scale::Log),
            y: ("time (ms)".to_owned(), scale),
            series,
        }
    }

    /// The `d` of the paths of the first line, the one in the legend aside.
    fn drawn(svg: &str) -> String {
        let path = svg.lines().rfind(|line| line.starts_with("<path class=\"line0\"")).unwrap();
        path.split('"').nth(3).unwrap().to_owned()
    }

    #[test]
    fn axes_are_labelled_and_both_kinds_of_pages_have_colours() {
        let svg = chart(Scale::Linear, &[&[(1e5, Some(3.0)), (1e6, Some(4.0))]]).svg().unwrap();
        for part in ["Time &amp; size", ">keys<", ">time (ms)<", "a &lt;b&gt;", ">100k<", ">1M<"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(svg.contains("prefers-color-scheme: dark"));
        assert!(LIGHT.iter().chain(&DARK).all(|colour| svg.contains(colour)));
        assert!(!svg.contains("<script"));
    }

    #[test]
    fn a_gap_interrupts_the_line() {
        let points =
            [(1.0, Some(1.0)), (2.0, Some(2.0)), (3.0, None), (4.0, Some(3.0)), (5.0, Some(3.0))];
        let svg = chart(Scale::Linear, &[&points]).svg().unwrap();
        let path = drawn(&svg);
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 2), "{path}");
        // One in the legend, and one for each of the four points.
        assert_eq!(svg.matches("<circle").count(), 5);
    }

    #[test]
    fn one_point_is_a_marker_inside_the_axes() {
        for scale in [Scale::Linear, Scale::Log] {
            let svg = chart(scale, &[&[(1e6, Some(7.0))]]).svg().unwrap();
            let marks: Vec<&str> = svg.lines().filter(|line| line.starts_with("<circle")).collect();
            let number = |name: &str| -> f64 {
                let (_, rest) = marks.last().unwrap().split_once(&format!("{name}=\"")).unwrap();
                rest.split('"').next().unwrap().parse().unwrap()
            };
            assert!((LEFT..=WIDTH - RIGHT).contains(&number("cx")), "{svg}");
            assert!((TOP..=HEIGHT - BOTTOM).contains(&number("cy")), "{svg}");
        }
    }

    #[test]
    fn zero_on_a_log_axis_is_an_error_that_names_the_plot() {
        let error = chart(Scale::Log, &[&[(1.0, Some(0.0))]]).svg().unwrap_err();
        assert!(error.contains("Time & size") && error.contains("time (ms)"), "{error}");
    }

    #[test]
    fn lines_of_many_points_have_no_markers() {
        let points: Vec<(f64, Option<f64>)> =
            (1..=100).map(|x| (f64::from(x), Some(1.0))).collect();
        let svg = chart(Scale::Log, &[&points]).svg().unwrap();
        assert_eq!(svg.matches("<circle").count(), 1);
        assert_eq!(drawn(&svg).matches('L').count(), 99);
    }

    #[test]
    fn every_element_is_closed() {
        let line: &[(f64, Option<f64>)] = &[(1.0, Some(1.0)), (9.0, Some(2.0))];
        let svg = chart(Scale::Log, &[line; 5]).svg().unwrap();
        let opened = svg.matches('<').count() - svg.matches("</").count();
        let closed = svg.matches("</").count() + svg.matches("/>").count();
        assert_eq!(opened, closed, "{svg}");
    }
}
