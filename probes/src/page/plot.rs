//! Plots as SVG, without a script: lines, cumulative shares, histograms, bars.
//!
//! Places along x are per cent and places along y are pixels, so that a plot gets as wide as its page while its words keep
//! their size. Colours come from `plot.css`, in light and in dark.

use std::fmt::Write as _;

use super::escape;
use super::scale::{Scale, TICKS, drawable, number};

/// A plot.
#[derive(Debug, Clone, Default)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What x is, with the unit.
    pub x_label: String,
    /// What y is, with the unit.
    pub y_label: String,
    /// How it is drawn.
    pub kind: Kind,
    /// What is drawn, the most important first.
    pub lines: Vec<Line>,
    /// The axis of x, where it is not to follow from the points.
    pub x: Option<Scale>,
}

/// How a plot is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// y over x.
    #[default]
    Line,
    /// The share of the values (y, 0 to 1) up to x; x in decades where values are far apart.
    Cdf,
    /// How many values (y) there are from x up to the next x.
    Histogram,
    /// One bar a line, as long as y of its first point; further points are the same bar in further groups.
    Bars,
}

/// One line of a plot.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// x and y; where one of them is no number there is a gap.
    pub points: Vec<(f64, f64)>,
}

impl Plot {
    /// A figure for a page: the title, a legend, the plot, and what it shows in words.
    pub fn figure(&self) -> String {
        let mut html = format!("<figure class=\"plot\"><figcaption>{}</figcaption>\n", escape(&self.title));
        if self.kind != Kind::Bars {
            html += &self.legend();
        }
        let class = if self.kind == Kind::Bars { "frame bars" } else { "frame" };
        let (body, height) = self.body();
        let _ = write!(
            html,
            "<div class=\"{class}\"><svg width=\"100%\" height=\"{height}\" role=\"img\" aria-label=\"{}\">{body}</svg></div>",
            escape(&self.words()),
        );
        html + "</figure>\n"
    }

    /// A picture in a file of its own, as wide as a text.
    pub fn picture(&self) -> String {
        let (body, height) = self.body();
        let names = if self.kind == Kind::Bars { 0 } else { self.lines.len() };
        let above = 44 + 18 * names;
        let all = above + height + 16;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"picture\" viewBox=\"0 0 {WIDE} {all}\" width=\"{WIDE}\" \
             height=\"{all}\" role=\"img\" aria-label=\"{}\"><style>{}</style>\
             <rect class=\"paper\" width=\"{WIDE}\" height=\"{all}\" rx=\"8\"/>\
             <text class=\"title\" x=\"20\" y=\"30\">{}</text>",
            escape(&self.words()),
            PLOT_CSS,
            escape(&self.title),
        );
        for (n, line) in self.lines.iter().take(names).enumerate() {
            let y = 50 + 18 * n;
            let color = n % COLORS;
            let _ = write!(
                svg,
                "<rect class=\"f{color}\" x=\"20\" y=\"{}\" width=\"14\" height=\"4\"/>\
                 <text class=\"name\" x=\"42\" y=\"{y}\">{}</text>",
                y - 6,
                escape(&line.name),
            );
        }
        let (left, right) = if self.kind == Kind::Bars { (20, 20) } else { (60, 24) };
        let _ = writeln!(
            svg,
            "<svg x=\"{left}\" y=\"{above}\" width=\"{}\" height=\"{height}\">{body}</svg></svg>",
            WIDE - left - right
        );
        svg
    }

    /// The names of the lines beside their colours.
    fn legend(&self) -> String {
        let mut html = String::from("<ul class=\"legend\">");
        for (n, line) in self.lines.iter().enumerate() {
            let _ = write!(html, "<li><i class=\"k{}\"></i>{}</li>", n % COLORS, escape(&line.name));
        }
        html + "</ul>\n"
    }

    /// What is seen, for those who do not see it.
    pub fn words(&self) -> String {
        let mut words = format!("{}.", self.title);
        for line in &self.lines {
            let mut values: Vec<f64> = match self.kind {
                Kind::Cdf => line.points.iter().map(|point| point.0).collect(),
                _ => line.points.iter().map(|point| point.1).collect(),
            };
            values.retain(|value| value.is_finite());
            values.sort_by(f64::total_cmp);
            let (Some(least), Some(most)) = (values.first(), values.last()) else {
                let _ = write!(words, " {}: no figures.", line.name);
                continue;
            };
            let label = if self.kind == Kind::Cdf { &self.x_label } else { &self.y_label };
            let _ = match values.len() {
                1 => write!(words, " {}: {} ({label}).", line.name, number(*least)),
                _ => write!(words, " {}: {} to {} ({label}).", line.name, number(*least), number(*most)),
            };
        }
        words
    }

    /// The drawing, and how high it is.
    fn body(&self) -> (String, usize) {
        match self.kind {
            Kind::Bars => self.bars(),
            _ if !self.points().any(|(x, y)| drawable(x) && drawable(y)) => {
                ("<text x=\"0\" y=\"20\">No figures.</text>".to_owned(), 30)
            }
            _ => self.graph(),
        }
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> + Clone {
        self.lines.iter().flat_map(|line| line.points.iter().copied())
    }

    fn graph(&self) -> (String, usize) {
        let x = self.x.unwrap_or_else(|| match self.kind {
            Kind::Cdf => Scale::spread(self.points().map(|point| point.0)),
            Kind::Histogram => self.histogram_scale(),
            Kind::Line => tight(self.points().map(|point| point.0)),
            Kind::Bars => Scale::new(0.0, 1.0),
        });
        let ys = self.points().map(|point| point.1);
        let y = if self.kind == Kind::Cdf { Scale::new(0.0, 1.0) } else { Scale::around(ys).rounded() };
        let mut svg = format!("<text x=\"-44\" y=\"{}\">{}</text>", TOP - 14, escape(&self.y_label));
        for (tick, words) in y.ticks(4) {
            let place = TOP as f64 + (1.0 - y.place(tick)) * HIGH as f64;
            let words = if self.kind == Kind::Cdf { format!("{:.0} %", tick * 100.0) } else { words };
            let class = if tick == 0.0 { "base" } else { "grid" };
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"0\" x2=\"100%\" y1=\"{place:.1}\" y2=\"{place:.1}\"/>\
                 <text class=\"end\" x=\"-8\" y=\"{:.1}\">{words}</text>",
                place + 4.0,
            );
        }
        svg += &x_ticks(&x, TOP, TOP + HIGH);
        let _ =
            write!(svg, "<text class=\"end\" x=\"100%\" y=\"{}\">{}</text>", TOP + HIGH + 36, escape(&self.x_label));
        let _ = write!(
            svg,
            "<svg y=\"{TOP}\" width=\"100%\" height=\"{HIGH}\" viewBox=\"0 0 {FINE} {HIGH}\" preserveAspectRatio=\"none\">"
        );
        // The first line is the most important: it is drawn over the others.
        for (n, line) in self.lines.iter().enumerate().rev() {
            svg += &match self.kind {
                Kind::Histogram => steps(line, n % COLORS, &x, &y),
                _ => curve(line, n % COLORS, &x, &y),
            };
        }
        (svg + "</svg>", TOP + HIGH + 42)
    }

    /// Up to the end of the last bin.
    fn histogram_scale(&self) -> Scale {
        let ends = self.lines.iter().flat_map(bins).map(|(_, to, _)| to);
        tight(self.points().map(|point| point.0).chain(ends))
    }

    fn bars(&self) -> (String, usize) {
        let groups = self.lines.iter().map(|line| line.points.len()).max().unwrap_or_default().min(MOST_GROUPS);
        let scale = Scale::around(self.points().map(|point| point.1));
        let mut svg = format!("<text x=\"0\" y=\"10\">{}</text>", escape(&self.y_label));
        let mut y = 30;
        for group in 0..groups {
            if groups > 1 {
                let x = self.lines.iter().find_map(|line| line.points.get(group)).map_or(f64::NAN, |point| point.0);
                let _ = write!(
                    svg,
                    "<text class=\"title\" x=\"0\" y=\"{}\">{} {}</text>",
                    y + 6,
                    number(x),
                    escape(&self.x_label)
                );
                y += 26;
            }
            for (n, line) in self.lines.iter().enumerate() {
                let value = line.points.get(group).map_or(f64::NAN, |point| point.1);
                let color = if groups > 1 { n % COLORS } else { 0 };
                let (from, to) = (scale.place(0.0), scale.place(value));
                let _ = write!(
                    svg,
                    "<text class=\"name\" x=\"0\" y=\"{y}\">{}</text><text class=\"value end\" x=\"100%\" y=\"{y}\">{}</text>\
                     <rect class=\"f{color}\" x=\"{:.2}%\" y=\"{}\" width=\"{:.2}%\" height=\"10\" rx=\"2\"/>",
                    escape(&line.name),
                    number(value),
                    from.min(to) * 100.0,
                    y + 5,
                    if drawable(value) { (to - from).abs() * 100.0 } else { 0.0 },
                );
                y += 34;
            }
        }
        if y == 30 {
            svg += "<text x=\"0\" y=\"30\">No figures.</text>";
        }
        (svg, y)
    }
}

/// Ticks along x with their words below, every other one left out on a narrow page.
pub(super) fn x_ticks(x: &Scale, top: usize, bottom: usize) -> String {
    let mut svg = String::new();
    for (n, (tick, words)) in x.ticks(TICKS + 4).into_iter().enumerate() {
        let place = x.place(tick) * 100.0;
        let seldom = if n % 2 == 1 { " seldom" } else { "" };
        let _ = write!(
            svg,
            "<line class=\"grid{seldom}\" x1=\"{place:.2}%\" x2=\"{place:.2}%\" y1=\"{top}\" y2=\"{bottom}\"/>\
             <text class=\"mid{seldom}\" x=\"{place:.2}%\" y=\"{}\">{words}</text>",
            bottom + 18,
        );
    }
    svg
}

/// From the least to the most of `values`.
fn tight(values: impl Iterator<Item = f64>) -> Scale {
    let (low, high) = values
        .filter(|value| drawable(*value))
        .fold((f64::MAX, f64::MIN), |(low, high), value| (value.min(low), value.max(high)));
    Scale::new(low, high)
}

/// The bins of a histogram: from, to, count.
fn bins(line: &Line) -> impl Iterator<Item = (f64, f64, f64)> {
    let last = line.points.windows(2).last().map_or(1.0, |pair| pair[1].0 - pair[0].0);
    let next = line.points.iter().skip(1).map(|point| point.0).map(Some).chain([None]);
    line.points.iter().zip(next).map(move |((x, y), next)| (*x, next.unwrap_or(x + last), *y))
}

fn steps(line: &Line, color: usize, x: &Scale, y: &Scale) -> String {
    let (mut path, zero) = (String::new(), (1.0 - y.place(0.0)) * HIGH as f64);
    for (from, to, count) in bins(line).filter(|(from, to, count)| [*from, *to, *count].into_iter().all(drawable)) {
        let (from, to) = (x.place(from) * FINE, x.place(to) * FINE);
        let top = (1.0 - y.place(count)) * HIGH as f64;
        let _ = write!(path, "M{from:.0} {zero:.1}V{top:.1}H{to:.0}V{zero:.1}");
    }
    format!("<path class=\"area f{color} s{color}\" d=\"{path}\"/>")
}

/// A line through the points, broken at gaps; where there are more points than one sees, the extremes of each column.
fn curve(line: &Line, color: usize, x: &Scale, y: &Scale) -> String {
    let place = |(px, py): (f64, f64)| {
        let seen = drawable(px) && drawable(py);
        seen.then(|| ((x.place(px) * FINE).round() as i64, (1.0 - y.place(py)) * HIGH as f64))
    };
    let (mut path, mut dots) = (String::new(), String::new());
    for run in line
        .points
        .iter()
        .copied()
        .map(place)
        .collect::<Vec<_>>()
        .chunk_by(|one, other| one.is_some() == other.is_some())
    {
        let run: Vec<(i64, f64)> = run.iter().copied().flatten().collect();
        if let [(x, y)] = run[..] {
            let _ = write!(dots, "M{x} {y:.1}h0");
            continue;
        }
        let mut command = 'M';
        for column in run.chunk_by(|one, other| one.0 == other.0) {
            for y in extremes(column) {
                let _ = write!(path, "{command}{} {y:.1}", column[0].0);
                command = 'L';
            }
        }
    }
    let mut svg = format!("<path class=\"line s{color}\" d=\"{path}\"/>");
    if !dots.is_empty() {
        let _ = write!(svg, "<path class=\"dot s{color}\" d=\"{dots}\"/>");
    }
    svg
}

/// The first, lowest, highest and last of a column.
fn extremes(column: &[(i64, f64)]) -> Vec<f64> {
    let ys = || column.iter().map(|point| point.1);
    if column.len() <= 4 {
        return ys().collect();
    }
    let (low, high) = ys().fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
    vec![column[0].1, low, high, column[column.len() - 1].1]
}

/// For plots, on a page or in a file of their own.
pub(super) const PLOT_CSS: &str = include_str!("plot.css");
/// How many colours there are.
const COLORS: usize = 6;
/// The room for the label of y, in pixels.
const TOP: usize = 24;
/// How high a graph is, in pixels.
const HIGH: usize = 190;
/// Columns of a graph: no more are seen.
const FINE: f64 = 1200.0;
/// More groups of bars are another kind of plot.
const MOST_GROUPS: usize = 24;
/// How wide a picture is, in pixels: as GitHub shows a text.
const WIDE: usize = 880;

#[cfg(test)]
mod tests {
    use super::super::tests::well_formed;
    use super::*;

    const KINDS: [Kind; 4] = [Kind::Line, Kind::Cdf, Kind::Histogram, Kind::Bars];

    fn plot(kind: Kind, points: &[(f64, f64)]) -> Plot {
        let line = |name: &str| Line { name: name.into(), points: points.to_vec() };
        Plot {
            title: "a <b> & \"c\"".into(),
            x_label: "s".into(),
            y_label: "ms".into(),
            kind,
            lines: vec![line("ours"), line("<script>")],
            x: None,
        }
    }

    #[test]
    fn any_points_make_a_plot() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, -1e300, 0.0, 1.0];
        let pairs: Vec<(f64, f64)> = odd.iter().flat_map(|x| odd.map(|y| (*x, y))).collect();
        let many: Vec<(f64, f64)> = (0..50_000).map(|n| (f64::from(n), f64::from(n % 7))).collect();
        for points in [&[][..], &[(1.0, 2.0)], &[(0.0, 0.0)], &[(3.0, 1.0), (3.0, 1.0)], &pairs, &many] {
            for kind in KINDS {
                let plot = plot(kind, points);
                for text in [plot.figure(), plot.picture()] {
                    well_formed(&text);
                    assert!(!text.contains("NaN") && !text.contains("inf\"") && !text.contains("<script>"), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_line_is_where_its_points_are_and_broken_at_a_gap() {
        let svg = plot(Kind::Line, &[(0.0, 0.0), (5.0, 100.0), (7.0, f64::NAN), (10.0, 50.0)]).figure();
        assert!(svg.contains("d=\"M0 190.0L600 0.0\""), "{svg}");
        assert!(svg.contains("d=\"M1200 95.0h0\""), "{svg}");
        assert!(svg.contains("ours: 0 to 100 (ms)."), "{svg}");
    }

    #[test]
    fn of_many_points_the_extremes_are_kept() {
        let spike = |n: i32| (f64::from(n), if n == 777 { 1000.0 } else { 1.0 });
        let svg = plot(Kind::Line, &(0..100_000).map(spike).collect::<Vec<_>>()).figure();
        assert!(svg.len() < 200_000, "{}", svg.len());
        assert!(svg.contains("L9 0.0"), "the spike");
    }

    #[test]
    fn a_histogram_has_a_bar_for_each_bin() {
        let svg = plot(Kind::Histogram, &[(0.0, 1.0), (1.0, 2.0)]).figure();
        assert!(svg.contains("M0 190.0V95.0H600V190.0M600 190.0V0.0H1200V190.0"), "{svg}");
    }

    #[test]
    fn a_bar_is_as_long_as_its_figure() {
        let mut plot = plot(Kind::Bars, &[(0.0, 4.0)]);
        plot.lines[1].points[0].1 = 1.0;
        let svg = plot.figure();
        assert!(svg.contains("width=\"100.00%\"") && svg.contains("width=\"25.00%\""), "{svg}");
    }
}
