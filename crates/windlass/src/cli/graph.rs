//! Pictures of a pipeline: as text, and as SVG that needs nothing but a browser.

use super::print::visible;
use std::fmt::Write;

/// A stage and what is in it now.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    /// A few words each.
    pub(super) lines: Vec<String>,
    /// It holds those before it.
    pub(super) full: bool,
    /// Who carries what is in it further, one arrow each.
    pub(super) workers: usize,
    pub(super) to: Vec<String>,
}

/// How far each stage is from the first, or, where no way leads to it from there, from another that begins a way.
fn depths(stages: &[Node]) -> Vec<usize> {
    let mut depths = vec![None; stages.len()];
    let is_begin = |at: &usize| !stages.iter().any(|stage| stage.to.contains(&stages[*at].name));
    let all = 0..stages.len();
    for begin in all.clone().take(1).chain(all.clone().filter(is_begin)).chain(all) {
        let (mut at, mut depth) = (vec![begin], 0);
        while !at.is_empty() {
            at.retain(|stage| depths[*stage].is_none());
            at.iter().for_each(|stage| depths[*stage] = Some(depth));
            let next = at.iter().flat_map(|stage| &stages[*stage].to);
            at = next.filter_map(|name| stages.iter().position(|stage| stage.name == *name)).collect();
            at.sort_unstable();
            at.dedup();
            depth += 1;
        }
    }
    depths.into_iter().map(Option::unwrap_or_default).collect()
}

pub(super) fn text(name: &str, stages: &[Node]) -> String {
    let depths = depths(stages);
    let depth_of = |to: &str| stages.iter().position(|stage| stage.name == to).map_or(0, |at| depths[at]);
    let mut text = format!("{}\n", visible(name));
    for (stage, depth) in stages.iter().zip(&depths) {
        // Writing into memory cannot fail.
        let _infallible = writeln!(
            text,
            "{:indent$}[{}] {}",
            "",
            visible(&stage.name),
            stage.lines.join(", "),
            indent = 2 + 2 * depth,
        );
        for to in &stage.to {
            let back = if depth_of(to) <= *depth { " (back)" } else { "" };
            let _infallible = writeln!(text, "{:indent$}-> {}{back}", "", visible(to), indent = 4 + 2 * depth);
        }
    }
    text
}

/// A line of stages as boxes from left to right, with an arrow for each worker between them; none where it is no line.
pub(super) fn boxes(stages: &[Node]) -> Option<String> {
    const ARROW: &str = " ---> ";
    const NO_ARROW: &str = "      ";
    let next = |at: usize| stages.get(at + 1).map(|next| next.name.as_str());
    let is_line = stages.iter().enumerate().all(|(at, stage)| stage.to.iter().map(String::as_str).eq(next(at)));
    let length = |text: &str| text.chars().count();
    let high = stages.iter().map(|stage| stage.lines.len()).max().filter(|_| is_line)?;
    let mut rows = vec![String::new(); high + 3];
    for (at, stage) in stages.iter().enumerate() {
        let name = visible(&stage.name);
        let wide = stage.lines.iter().map(|line| length(line)).chain([length(&name)]).max().unwrap_or(0);
        let edge = format!("+-{}-+", "-".repeat(wide));
        rows[0].push_str(&format!("  {name:^wide$}  "));
        rows[1].push_str(&edge);
        for (row, line) in stage.lines.iter().map(String::as_str).chain(std::iter::repeat("")).take(high).enumerate() {
            rows[row + 2].push_str(&format!("| {line:<wide$} |"));
        }
        rows[high + 2].push_str(&edge);
        if at + 1 < stages.len() {
            for (row, line) in rows.iter_mut().enumerate() {
                let arrow = (2..high + 2).contains(&row) && row - 2 < stage.workers;
                line.push_str(if arrow { ARROW } else { NO_ARROW });
            }
        }
    }
    Some(rows.iter().map(|row| format!("{}\n", row.trim_end())).collect())
}

/// Boxes in columns by their distance from the first stage, joined by arrows; those that lead back run underneath.
pub(super) fn svg(name: &str, stages: &[Node]) -> String {
    const WIDE: usize = 220;
    const HIGH: usize = 76;
    const GAP: usize = 80;
    const ROW: usize = 110;
    let depths = depths(stages);
    let row = |at: usize| depths[..at].iter().filter(|depth| **depth == depths[at]).count();
    let place = |at: usize| (20 + depths[at] * (WIDE + GAP), 50 + row(at) * ROW);
    let rows = (0..stages.len()).map(row).max().unwrap_or(0) + 1;
    let columns = depths.iter().max().unwrap_or(&0) + 1;
    let (width, height) = (40 + columns * (WIDE + GAP) - GAP, 70 + rows * ROW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<defs><marker id=\"a\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L10 5L0 10z\"/></marker></defs>\n\
         <text x=\"20\" y=\"28\" font-size=\"18\" font-weight=\"bold\">{}</text>\n",
        escaped(name)
    );
    for (at, stage) in stages.iter().enumerate() {
        let (x, y) = place(at);
        for to in stage.to.iter().filter_map(|to| stages.iter().position(|stage| stage.name == *to)) {
            let (to_x, to_y) = place(to);
            let path = if depths[to] > depths[at] {
                format!("M{} {}L{} {}", x + WIDE, y + HIGH / 2, to_x - 2, to_y + HIGH / 2)
            } else {
                let low = y.max(to_y) + HIGH + 24;
                let (from, back) = (x + WIDE / 2 + 20, to_x + WIDE / 2 - 20);
                format!("M{from} {}C{from} {low} {back} {low} {back} {}", y + HIGH, to_y + HIGH + 2)
            };
            let _infallible =
                writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"black\" marker-end=\"url(#a)\"/>");
        }
    }
    for (at, stage) in stages.iter().enumerate() {
        let (x, y) = place(at);
        let fill = if stage.full { "#ffe0b0" } else { "#eef4fb" };
        let _infallible = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDE}\" height=\"{HIGH}\" rx=\"6\" fill=\"{fill}\" stroke=\"black\"/>"
        );
        let lines = std::iter::once(escaped(&stage.name)).chain(stage.lines.iter().map(|line| escaped(line)));
        for (at, line) in lines.enumerate() {
            let weight = if at == 0 { " font-weight=\"bold\"" } else { "" };
            let (x, y) = (x + 10, y + 18 + at * 17);
            let _infallible = writeln!(svg, "<text x=\"{x}\" y=\"{y}\"{weight}>{line}</text>");
        }
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    visible(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Vec<Node> {
        let node = |name: &str, to: &[&str]| Node {
            name: name.into(),
            lines: vec!["5 of 5 waiting".into(), "0 running in 2".into()],
            full: true,
            to: to.iter().map(|to| (*to).to_owned()).collect(),
            ..Node::default()
        };
        vec![node("fetch", &["parse", "save<"]), node("parse", &["fetch"]), node("save<", &[])]
    }

    #[test]
    fn a_line_for_each_stage_and_for_each_way() {
        let text = text("site", &ring());
        assert!(text.contains("  [fetch] 5 of 5 waiting, 0 running in 2\n    -> parse\n"), "{text}");
        assert!(text.contains("      -> fetch (back)"), "{text}");
    }

    #[test]
    fn stages_that_no_way_leads_to_from_the_first_begin_at_the_edge() {
        let node = |name: &str, to: &[&str]| Node {
            name: name.into(),
            to: to.iter().map(|to| (*to).to_owned()).collect(),
            ..Node::default()
        };
        // One apart, a way into the middle, and a circle that nothing leads into.
        let apart = [node("a", &[]), node("c", &["d"]), node("b", &["c"]), node("d", &[]), node("e", &["e"])];
        assert_eq!(depths(&apart), [0, 1, 0, 2, 0]);
        assert!(svg("q", &apart).contains("width=\"860\""), "{}", svg("q", &apart));
        assert_eq!(depths(&[]), Vec::<usize>::new());
    }

    #[test]
    fn a_line_of_stages_is_boxes_with_an_arrow_for_each_worker() {
        let node = |name: &str, lines: &[&str], workers, to: &[&str]| Node {
            name: name.into(),
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            workers,
            to: to.iter().map(|to| (*to).to_owned()).collect(),
            ..Node::default()
        };
        let line = [
            node("in", &["12 waiting", "1 working"], 1, &["parsed"]),
            node("parsed", &["3 waiting", "2 working"], 9, &["out"]),
            node("out", &["0 waiting"], 0, &[]),
        ];
        assert_eq!(
            boxes(&line).unwrap(),
            "      in               parsed               out\n\
             +------------+      +-----------+      +-----------+\n\
             | 12 waiting | ---> | 3 waiting | ---> | 0 waiting |\n\
             | 1 working  |      | 2 working | ---> |           |\n\
             +------------+      +-----------+      +-----------+\n"
        );
        assert_eq!(boxes(&ring()), None);
        assert_eq!(boxes(&[]), None);
    }

    #[test]
    fn the_picture_has_a_box_for_each_stage_an_arrow_for_each_way_and_no_markup_of_names() {
        let svg = svg("a & b", &ring());
        assert_eq!(svg.matches("<rect").count(), 3);
        assert_eq!(svg.matches("marker-end").count(), 3);
        assert!(svg.contains("save&lt;") && svg.contains("a &amp; b") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
