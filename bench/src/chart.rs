//! Results as a picture: an SVG 1.1 file with a bar for each row on a logarithmic scale.

use std::fmt::Write as _;

use crate::report::{Measured, RowResult};

/// Left edge of the bars; `SPAN` is the width of the longest possible bar.
const LEFT: f64 = 200.0;
const SPAN: f64 = 560.0;
const WIDTH: f64 = 860.0;
/// Space above the first row; `BOTTOM` is the space below the last one.
const TOP: f64 = 52.0;
const BOTTOM: f64 = 16.0;
const ROW: f64 = 24.0;

/// Bar colours by prefix of the row name: bare call and floors, Capriole, the kernel. All other
/// rows have the colour `OTHERS`.
const COLOURS: [(&str, &str); 4] = [
    ("bare", "#9aa0a6"),
    ("floor.", "#9aa0a6"),
    ("capriole.", "#1a73e8"),
    ("kernel.", "#d93025"),
];
const OTHERS: &str = "#e8710a";

/// Draws the rows in order: a bar whose length is the logarithm of the time per call (median of the
/// rounds, including the call itself), and a line from the 50th to the 99th percentile of single
/// calls. Rows without numbers show the reason instead.
pub fn chart(results: &[RowResult]) -> String {
    let decades = decades(results);
    let x = |ns: f64| LEFT + SPAN * (ns.max(1.0).log10() / f64::from(decades)).min(1.0);
    let height = TOP + ROW * results.len() as f64 + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>What seeing a call costs</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"13\" fill=\"#202124\">nanoseconds a call, \
         logarithmic; line: 50th to 99th percentile of single calls</text>\n"
    );
    for decade in 0..=decades {
        let ns = 10f64.powi(decade as i32);
        let (at, end) = (x(ns), height - BOTTOM);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{end}\" stroke=\"#dadce0\"/>\n\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#5f6368\">{}</text>",
            TOP - 8.0,
            grouped(ns),
        );
    }
    for (index, result) in results.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#202124\">{}</text>",
            LEFT - 8.0,
            top + 16.0,
            escaped(result.name())
        );
        svg += &match result {
            RowResult::Measured(row) => bar(row, top, x),
            RowResult::Skipped { why, .. } => reason("skipped", why, top),
            RowResult::Failed { why, .. } => reason("failed", why, top),
        };
    }
    svg += "</svg>\n";
    svg
}

/// Number of decades on the axis: at least one (10 ns), and enough for the longest bar.
fn decades(results: &[RowResult]) -> u32 {
    let longest = results
        .iter()
        .filter_map(RowResult::measured)
        .flat_map(|row| [row.ns, row.p99_ns.unwrap_or(0.0)])
        .fold(1.0, f64::max);
    (longest.log10().ceil() as u32).max(1)
}

fn bar(row: &Measured, top: f64, x: impl Fn(f64) -> f64) -> String {
    let colour = COLOURS
        .iter()
        .find(|(start, _)| row.name.starts_with(start));
    let colour = colour.map_or(OTHERS, |(_, colour)| colour);
    // Keep the bar visible for a call of less than 1 ns.
    let end = x(row.ns).max(LEFT + 1.0);
    let mut svg = format!(
        "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" fill=\"{colour}\"/>\n",
        top + 5.0,
        end - LEFT,
    );
    let mut after = end;
    if let Some((p50, p99)) = row.p50_ns.zip(row.p99_ns) {
        let (from, to, y) = (x(p50), x(p99), top + 12.0);
        after = after.max(to);
        let _ = writeln!(
            svg,
            "<path d=\"M{from:.1} {:.1}v8M{from:.1} {y:.1}H{to:.1}M{to:.1} {:.1}v8\" \
             stroke=\"#202124\" fill=\"none\"/>",
            y - 4.0,
            y - 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#202124\">{}</text>",
        after + 6.0,
        top + 16.0,
        grouped(row.ns)
    );
    svg
}

fn reason(what: &str, why: &str, top: f64) -> String {
    /// Longest reason that fits, in characters.
    const MOST: usize = 100;
    let mut why: String = why.split_whitespace().collect::<Vec<_>>().join(" ");
    if why.chars().count() > MOST {
        why = why.chars().take(MOST - 1).chain(['…']).collect();
    }
    format!(
        "<text x=\"{}\" y=\"{:.1}\" font-style=\"italic\" fill=\"#5f6368\">{what}: {}</text>\n",
        LEFT + 6.0,
        top + 16.0,
        escaped(&why)
    )
}

/// Formats with about three significant digits: `1.25`, `12.5`, `125`, `1,250`.
fn grouped(ns: f64) -> String {
    match ns {
        ns if ns >= 1000.0 => {
            let (thousands, rest) = (ns.round() as u64 / 1000, ns.round() as u64 % 1000);
            match thousands {
                0..1000 => format!("{thousands},{rest:03}"),
                _ => format!("{},{:03},{rest:03}", thousands / 1000, thousands % 1000),
            }
        }
        ns if ns >= 100.0 || ns.fract() == 0.0 => format!("{ns:.0}"),
        ns if ns >= 10.0 => format!("{ns:.1}"),
        ns => format!("{ns:.2}"),
    }
}

/// Escapes text for XML; characters that XML does not allow become U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxmltree::Document;

    fn measured(name: &str, ns: f64) -> RowResult {
        let mut row = Measured::from_rounds(name, &[ns], 1, None);
        row.p50_ns = Some(ns * 1.5);
        row.p99_ns = Some(ns * 3.0);
        RowResult::Measured(row)
    }

    /// Colour and width of each bar, without the background.
    fn bars(document: &Document<'_>) -> Vec<(String, f64)> {
        let rects = document
            .descendants()
            .filter(|node| node.has_tag_name("rect"));
        let word =
            |node: &roxmltree::Node<'_, '_>, name| node.attribute(name).unwrap_or("").to_owned();
        rects
            .skip(1)
            .map(|node| {
                (
                    word(&node, "fill"),
                    word(&node, "width").parse().expect("a number"),
                )
            })
            .collect()
    }

    #[test]
    fn bars_are_as_long_as_the_logarithm() {
        let rows = [
            measured("bare", 0.5),
            measured("capriole.record2", 10.0),
            measured("kernel.uprobe", 1000.0),
            measured("lttng_ust", 100.0),
        ];
        let svg = chart(&rows);
        let document = Document::parse(&svg).expect("well-formed");
        // The longest is the percentile of 3,000 ns, so the axis ends at 10,000.
        let quarter = SPAN / 4.0;
        let expected = [
            ("#9aa0a6", 1.0),
            ("#1a73e8", quarter),
            ("#d93025", quarter * 3.0),
            ("#e8710a", quarter * 2.0),
        ];
        let expected = expected.map(|(colour, width)| (colour.to_owned(), width));
        assert_eq!(bars(&document), expected);
    }

    #[test]
    fn any_reason_and_name_is_well_formed() {
        let why = "a <b> & \"c\" \u{1b}[31m\n".to_owned() + &"long ".repeat(100);
        let rows = [
            RowResult::Skipped {
                name: "a&b".into(),
                why: why.clone(),
            },
            RowResult::Failed {
                name: "<c>".into(),
                why,
            },
        ];
        let svg = chart(&rows);
        let document = Document::parse(&svg).expect("well-formed");
        let said: Vec<_> = document
            .descendants()
            .filter_map(|node| node.text())
            .collect();
        for name in ["a&b", "<c>"] {
            assert!(said.contains(&name), "{said:?}");
        }
        for begin in ["skipped: a <b> & \"c\" ", "failed: a <b> & \"c\" "] {
            let text = said.iter().find(|text| text.starts_with(begin));
            let text = text.unwrap_or_else(|| panic!("{said:?}"));
            assert!(text.ends_with('…') && text.chars().count() < 120, "{text}");
        }
        assert!(Document::parse(&chart(&[])).is_ok());
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let texts = [1.256, 12.56, 125.6, 1256.4, 1_234_567.0, 10.0].map(grouped);
        assert_eq!(texts, ["1.26", "12.6", "126", "1,256", "1,234,567", "10"]);
    }
}
