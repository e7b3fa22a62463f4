//! One figure, its line, and the rounds it comes from.
//!
//! A rate and its raw limit are taken in turn, round by round; the round with the median ratio is the one that is
//! printed, so that value, raw and ratio belong together.

use super::Outcome;

/// What a figure must reach, and what it should.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bar {
    None,
    /// The ratio to the raw limit.
    RatioAtLeast(f64, f64),
    RatioAtMost(f64, f64),
    AtLeast(f64, f64),
    AtMost(f64, f64),
}

#[derive(Debug)]
pub(super) struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    raw: Option<f64>,
    bar: Bar,
}

impl Figure {
    pub(super) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Figure {
        Figure { name: name.into(), value, unit, raw: None, bar: Bar::None }
    }

    pub(super) fn raw(self, raw: f64) -> Figure {
        Figure { raw: Some(raw), ..self }
    }

    pub(super) fn bar(self, bar: Bar) -> Figure {
        Figure { bar, ..self }
    }

    /// `name value unit [raw VALUE ratio R] [floor F goal G ok|MISSED]`; unjudged without the verdict.
    pub(super) fn line(&self, judged: bool) -> String {
        let mut line = format!("{} {} {}", self.name, number(self.value), self.unit);
        let ratio = self.raw.map(|raw| self.value / raw);
        if let (Some(raw), Some(ratio)) = (self.raw, ratio) {
            line.push_str(&format!(" raw {} ratio {ratio:.2}", number(raw)));
        }
        let ratio = ratio.unwrap_or(f64::NAN);
        let (floor, goal, met) = match self.bar {
            Bar::None => return line,
            Bar::RatioAtLeast(floor, goal) => (floor, goal, ratio >= floor),
            Bar::RatioAtMost(floor, goal) => (floor, goal, ratio <= floor),
            Bar::AtLeast(floor, goal) => (floor, goal, self.value >= floor),
            Bar::AtMost(floor, goal) => (floor, goal, self.value <= floor),
        };
        line.push_str(&format!(" floor {} goal {}", number(floor), number(goal)));
        if judged {
            line.push_str(if met { " ok" } else { " MISSED" });
        }
        line
    }
}

/// As many digits as mean something.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Ours and the raw limit of the round with the median ratio.
pub(super) fn rounds(
    count: usize,
    mut ours: impl FnMut() -> Outcome<f64>,
    mut raw: impl FnMut() -> Outcome<f64>,
) -> Outcome<(f64, f64)> {
    let mut taken = Vec::new();
    for _ in 0..count {
        let raw = raw()?;
        taken.push((ours()?, raw));
    }
    taken.sort_by(|(a, b), (c, d)| (a / b).total_cmp(&(c / d)));
    Ok(taken[taken.len() / 2])
}

/// The value below which a share of the samples lies.
pub(super) fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * share).ceil() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_value_raw_ratio_and_verdict() {
        let figure = || Figure::new("push", 70.0, "jobs/s").raw(100.0);
        assert_eq!(figure().line(true), "push 70.0 jobs/s raw 100 ratio 0.70");
        let line = figure().bar(Bar::RatioAtLeast(0.71, 0.9)).line(true);
        assert_eq!(line, "push 70.0 jobs/s raw 100 ratio 0.70 floor 0.71 goal 0.90 MISSED");
        assert!(figure().bar(Bar::RatioAtMost(3.0, 1.5)).line(true).ends_with(" ok"));
        let idle = Figure::new("idle", 0.0, "switches").bar(Bar::AtMost(0.0, 0.0));
        assert_eq!(idle.line(true), "idle 0 switches floor 0 goal 0 ok");
        assert_eq!(idle.line(false), "idle 0 switches floor 0 goal 0");
    }

    #[test]
    fn the_round_with_the_median_ratio_is_taken() {
        let (mut ours, mut raw) = ([1.0, 8.0, 3.0].into_iter(), [2.0, 10.0, 30.0].into_iter());
        let none = || "none left".into();
        let pair = rounds(3, || ours.next().ok_or_else(none), || raw.next().ok_or_else(none));
        assert_eq!(pair.ok(), Some((1.0, 2.0)));
    }

    #[test]
    fn percentiles_of_few() {
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.99), 3.0);
    }
}
