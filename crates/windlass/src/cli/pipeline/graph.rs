//! Pictures of a pipeline: as text, and as SVG that needs nothing but a browser.

use super::super::print::{grouped, visible};
use std::fmt::Write;

/// A stage and what is in it now.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) workers: u32,
    pub(super) waiting: u64,
    pub(super) running: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) limit: u32,
    pub(super) to: Vec<String>,
}

impl Node {
    fn waits(&self) -> String {
        let limit = if self.limit > 0 { format!(" of {}", grouped(self.limit.into())) } else { String::new() };
        format!("{}{limit} waiting", grouped(self.waiting))
    }

    fn done(&self) -> String {
        format!("{} succeeded, {} failed", grouped(self.succeeded), grouped(self.failed))
    }
}

/// How far each stage is from the first.
fn depths(stages: &[Node]) -> Vec<usize> {
    let mut depths = vec![usize::MAX; stages.len()];
    let (mut at, mut depth) = (vec![0], 0);
    while !at.is_empty() {
        at.retain(|stage| depths[*stage] == usize::MAX);
        at.iter().for_each(|stage| depths[*stage] = depth);
        let next = at.iter().flat_map(|stage| &stages[*stage].to);
        at = next.filter_map(|name| stages.iter().position(|stage| stage.name == *name)).collect();
        at.sort_unstable();
        at.dedup();
        depth += 1;
    }
    depths
}

pub(super) fn text(name: &str, stages: &[Node]) -> String {
    let depths = depths(stages);
    let depth_of = |to: &str| stages.iter().position(|stage| stage.name == to).map_or(0, |at| depths[at]);
    let mut text = format!("{}\n", visible(name));
    for (stage, depth) in stages.iter().zip(&depths) {
        // Writing into memory cannot fail.
        let _infallible = writeln!(
            text,
            "{:indent$}[{}] {}, {} running in {}, {}",
            "",
            visible(&stage.name),
            stage.waits(),
            grouped(stage.running),
            stage.workers,
            stage.done(),
            indent = 2 + 2 * depth,
        );
        for to in &stage.to {
            let back = if depth_of(to) <= *depth { " (back)" } else { "" };
            let _infallible = writeln!(text, "{:indent$}-> {}{back}", "", visible(to), indent = 4 + 2 * depth);
        }
    }
    text
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
        let full = stage.limit > 0 && stage.waiting >= u64::from(stage.limit);
        let fill = if full { "#ffe0b0" } else { "#eef4fb" };
        let _infallible = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDE}\" height=\"{HIGH}\" rx=\"6\" fill=\"{fill}\" stroke=\"black\"/>"
        );
        let running = format!("{} running in {}", grouped(stage.running), stage.workers);
        let lines = [escaped(&stage.name), stage.waits(), running, stage.done()];
        for (at, line) in lines.iter().enumerate() {
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
            workers: 2,
            waiting: 5,
            limit: 5,
            to: to.iter().map(|to| (*to).to_owned()).collect(),
            ..Node::default()
        };
        vec![node("fetch", &["parse", "save<"]), node("parse", &["fetch"]), node("save<", &[])]
    }

    #[test]
    fn a_line_for_each_stage_and_for_each_way() {
        let text = text("site", &ring());
        assert!(
            text.contains("  [fetch] 5 of 5 waiting, 0 running in 2, 0 succeeded, 0 failed\n    -> parse\n"),
            "{text}"
        );
        assert!(text.contains("      -> fetch (back)"), "{text}");
    }

    #[test]
    fn the_picture_has_a_box_for_each_stage_an_arrow_for_each_way_and_no_markup_of_names() {
        let svg = svg("a & b", &ring());
        assert_eq!(svg.matches("<rect").count(), 3);
        assert_eq!(svg.matches("marker-end").count(), 3);
        assert!(svg.contains("save&lt;") && svg.contains("a &amp; b") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
