//! What a bench leaves behind: tables, and series for plots, with the circumstances they were measured under.
//!
//! One file a bench, `target/benches/NAME.json`, in this shape:
//!
//! ```json
//! {"bench": "latency",
//!  "machine": {"processor": "…", "cores": 2, "kernel": "…"},
//!  "commit": "dd454ba0c0de", "profile": "release", "load": [0.1, 0.2, 0.3],
//!  "versions": {"rustc": "…", "aiortc": "1.15.0"},
//!  "tables": [{"title": "…", "note": "…", "columns": ["condition", "subject", "p50, ms"],
//!              "rows": [["clean", "ours", 0.7], ["clean", "baseline", 81.5]]}],
//!  "series": [{"title": "…", "x_label": "s", "y_label": "delay, ms", "kind": "line",
//!              "lines": [{"name": "ours", "points": [[0.0, 0.7], [0.02, null]]}]}]}
//! ```
//!
//! A bench may be run in pieces: [`Record::store`] adds to what the file has of the same commit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{Failed, page};

/// One run of a bench, or the pieces of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The bench's name, and its file's.
    pub bench: String,
    /// Where it ran.
    pub machine: Machine,
    /// What it measured, as `git describe` names it; `-dirty` when the tree had changes.
    pub commit: String,
    /// `release` or `dev`.
    pub profile: String,
    /// The load averages of 1, 5 and 15 minutes before it began.
    pub load: [f64; 3],
    /// Versions by name: `rustc` always, others as the bench adds them.
    pub versions: BTreeMap<String, String>,
    /// In the order in which they are to be shown.
    pub tables: Vec<Table>,
    /// In the order in which they are to be shown.
    pub series: Vec<Series>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// As the kernel names it.
    pub processor: String,
    /// Those that this process may use.
    pub cores: usize,
    /// Its release.
    pub kernel: String,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it is about; no two of a record are the same.
    pub title: String,
    /// What was measured, from where to where. May be empty.
    #[serde(default)]
    pub note: String,
    /// With the unit: `p50, ms`.
    pub columns: Vec<String>,
    /// A row's leading texts name it; no two of a table have the same.
    pub rows: Vec<Vec<Cell>>,
}

/// One cell of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A figure, in the column's unit; `null` (not a number) where there is none.
    #[serde(with = "figure")]
    Figure(f64),
    /// A name, or a figure with its spread.
    Text(String),
}

/// What a plot shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What it is about; no two of a record are the same.
    pub title: String,
    /// With the unit.
    pub x_label: String,
    /// With the unit.
    pub y_label: String,
    /// How it is to be drawn.
    pub kind: Kind,
    /// At least one.
    pub lines: Vec<Line>,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// y over x; a point without y is a gap.
    Line,
    /// The share of values (y, 0 to 1) up to x.
    Cdf,
    /// How many values (y) there are from x up to the next x.
    Histogram,
    /// One bar a line, named by it: y of its first point. Further points are the same bar in further groups.
    Bars,
}

/// One line of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// x and y, x rising; y is `null` where nothing was measured.
    pub points: Vec<(f64, Option<f64>)>,
}

impl Record {
    /// An empty record of this machine, this commit and this moment's load.
    pub fn new(bench: &str) -> Self {
        let cpu = read("/proc/cpuinfo");
        let processor = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let load = read("/proc/loadavg");
        let mut load = load.split(' ').map(|figure| figure.parse().unwrap_or_default());
        Self {
            bench: bench.to_owned(),
            machine: Machine {
                processor: processor.trim_start_matches(['\t', ' ', ':']).to_owned(),
                cores: std::thread::available_parallelism().map_or(0, usize::from),
                kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            },
            commit: output(Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"])),
            profile: if cfg!(debug_assertions) { "dev" } else { "release" }.to_owned(),
            load: std::array::from_fn(|_| load.next().unwrap_or_default()),
            versions: BTreeMap::from([("rustc".to_owned(), output(Command::new("rustc").arg("--version")))]),
            tables: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Notes what is measured: our `program`, built in the profile that its folder is named by.
    pub fn measures(&mut self, program: &Path) {
        let folder = program.parent().and_then(Path::file_name).unwrap_or_default();
        self.profile = match &*folder.to_string_lossy() {
            "debug" => "dev".to_owned(),
            other => other.to_owned(),
        };
        self.version("watch-audio", Command::new(program).arg("--version"));
    }

    /// The baseline's helper is run by `python`.
    pub fn baseline(&mut self, python: &Path) {
        self.version("python", Command::new(python).arg("--version"));
        self.version("aiortc", Command::new(python).args(["-c", "import aiortc; print(aiortc.__version__)"]));
    }

    /// Notes a version: what `command` prints.
    pub fn version(&mut self, name: &str, command: &mut Command) {
        self.versions.insert(name.to_owned(), output(command));
    }

    /// Writes `NAME.json` to `folder`, and answers where; beside it `NAME.html`, a page with the plots. What the file has of
    /// the same commit, profile and machine stays: rows of the same name are replaced, as are lines.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn store(self, folder: &Path) -> Result<PathBuf, Failed> {
        let file = folder.join(format!("{}.json", self.bench));
        let before = std::fs::read(&file).ok().and_then(|before| serde_json::from_slice::<Self>(&before).ok());
        let whole = match before {
            Some(before) if before.is_of_the_same_run(&self) => before.joined_by(self),
            _ => self,
        };
        let json = serde_json::to_string(&whole).map_err(Failed::to("write the record"))?;
        std::fs::create_dir_all(folder).map_err(Failed::to("write the record"))?;
        std::fs::write(&file, json).map_err(Failed::to("write the record"))?;
        std::fs::write(file.with_extension("html"), page::html(&whole)).map_err(Failed::to("write the page"))?;
        Ok(file)
    }

    fn is_of_the_same_run(&self, other: &Self) -> bool {
        let of = |record: &Self| (record.commit.clone(), record.profile.clone(), record.machine.clone());
        of(self) == of(other)
    }

    fn joined_by(mut self, piece: Self) -> Self {
        (self.load, self.versions) = (piece.load, piece.versions);
        for table in piece.tables {
            match self.tables.iter_mut().find(|known| known.title == table.title && known.columns == table.columns) {
                Some(known) => known.rows = joined(&known.rows, table.rows, |row| row_name(row)),
                None => {
                    self.tables.retain(|known| known.title != table.title);
                    self.tables.push(table);
                }
            }
        }
        for series in piece.series {
            match self.series.iter_mut().find(|known| known.title == series.title) {
                Some(known) => {
                    known.lines = joined(&known.lines, series.lines, |line| vec![line.name.clone()]);
                }
                None => self.series.push(series),
            }
        }
        self
    }
}

impl Table {
    /// An empty table.
    pub fn new(title: &str, note: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.to_owned(), note: note.to_owned(), columns, rows: Vec::new() }
    }

    /// The table as text for a terminal, in columns.
    pub fn text(&self) -> String {
        let header = self.columns.clone();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::text).collect());
        let all: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
        let wide = |column: usize| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let mut text = format!("\n{}\n", self.title);
        if !self.note.is_empty() {
            text += &format!("{}\n", self.note);
        }
        for row in &all {
            text.push('\n');
            for (column, cell) in row.iter().enumerate() {
                let wide = wide(column).unwrap_or_default();
                // Names stand at the left, figures at the right.
                let is_name = self.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Text(_))));
                text += &if is_name { format!("{cell:<wide$}  ") } else { format!("{cell:>wide$}  ") };
            }
            text.truncate(text.trim_end_matches(' ').len());
        }
        text.push('\n');
        text
    }
}

impl Cell {
    /// The cell as people read it.
    pub fn text(&self) -> String {
        match self {
            Self::Figure(figure) if !figure.is_finite() => "–".to_owned(),
            Self::Figure(figure) if *figure == figure.trunc() && figure.abs() < 1e15 => format!("{figure:.0}"),
            Self::Figure(figure) if figure.abs() < 1.0 => format!("{figure:.3}"),
            Self::Figure(figure) if figure.abs() < 10.0 => format!("{figure:.2}"),
            Self::Figure(figure) => format!("{figure:.1}"),
            Self::Text(text) => text.clone(),
        }
    }
}

impl From<f64> for Cell {
    fn from(figure: f64) -> Self {
        Self::Figure(figure)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Line {
    /// The share of `values` up to each of at most 120 of them, closer together toward the end, where the slow
    /// ones are.
    pub fn cdf(name: &str, values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let mut points = Vec::new();
        let mut last = None;
        for n in 0..CDF_POINTS {
            // Evenly in the logarithm of what is left: from all of them to the last one.
            let left = (count as f64).powf(1.0 - n as f64 / (CDF_POINTS - 1) as f64);
            let place = (count as f64 - left).round() as usize;
            if last.replace(place) != Some(place)
                && let Some(value) = values.get(place)
            {
                points.push((*value, Some((place + 1) as f64 / count as f64)));
            }
        }
        Self { name: name.to_owned(), points }
    }

    /// How many of `values` fall into each step of `width` from `from` to `to`; those outside count in the first and
    /// in the last.
    pub fn histogram(name: &str, values: &[f64], from: f64, to: f64, width: f64) -> Self {
        let bins = ((to - from) / width).ceil().max(1.0) as usize;
        let mut counts = vec![0u32; bins];
        for value in values {
            let bin = ((value - from) / width).max(0.0) as usize;
            counts[bin.min(bins - 1)] += 1;
        }
        let points = counts
            .iter()
            .enumerate()
            .map(|(bin, count)| (from + width * bin as f64, Some(f64::from(*count))))
            .collect();
        Self { name: name.to_owned(), points }
    }
}

/// The items of `before`, those of the same name replaced; further ones behind them.
fn joined<T: Clone, K: PartialEq>(before: &[T], piece: Vec<T>, name: impl Fn(&T) -> K) -> Vec<T> {
    let mut all = before.to_vec();
    for item in piece {
        match all.iter_mut().find(|known| name(known) == name(&item)) {
            Some(known) => *known = item,
            None => all.push(item),
        }
    }
    all
}

/// A row's leading texts.
fn row_name(row: &[Cell]) -> Vec<Cell> {
    row.iter().take_while(|cell| matches!(cell, Cell::Text(_))).cloned().collect()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

fn output(command: &mut Command) -> String {
    command.output().map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// JSON has no NaN: `null` stands for it.
mod figure {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(figure: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        figure.is_finite().then(|| (figure * 1e6).round() / 1e6).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

/// Enough for a smooth curve.
const CDF_POINTS: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rows: Vec<Vec<Cell>>, line: &str) -> Record {
        let mut record = Record::new("record-test");
        record.tables.push(Table { rows, ..Table::new("delay", "", &["condition", "subject", "p50, ms"]) });
        let points = vec![(0.0, Some(1.0)), (0.5, None)];
        record.series.push(Series {
            title: "a stall".into(),
            x_label: "s".into(),
            y_label: "ms".into(),
            kind: Kind::Line,
            lines: vec![Line { name: line.into(), points }],
        });
        record
    }

    fn row(condition: &str, figure: f64) -> Vec<Cell> {
        vec![condition.into(), "ours".into(), figure.into()]
    }

    #[test]
    fn pieces_of_a_run_come_together() {
        let folder = tempfile::tempdir().unwrap();
        record(vec![row("clean", 1.5), row("1 % loss", f64::NAN)], "ours").store(folder.path()).unwrap();
        let file = record(vec![row("1 % loss", 2.5), row("stall", 3.5)], "baseline").store(folder.path()).unwrap();
        let page = std::fs::read_to_string(file.with_extension("html")).unwrap();
        assert!(page.contains("clean") && page.contains("stall"), "the page is of all pieces");
        let whole: Record = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(whole.tables[0].rows, [row("clean", 1.5), row("1 % loss", 2.5), row("stall", 3.5)]);
        assert_eq!(whole.series[0].lines.iter().map(|line| &*line.name).collect::<Vec<_>>(), ["ours", "baseline"]);
        assert_eq!(whole.series[0].lines[0].points[1], (0.5, None));
    }

    #[test]
    fn another_commit_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let old = Record { commit: "old".into(), ..record(vec![row("clean", 1.5)], "ours") };
        old.store(folder.path()).unwrap();
        let file = record(vec![row("stall", 3.5)], "ours").store(folder.path()).unwrap();
        let whole: Record = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(whole.tables[0].rows, [row("stall", 3.5)]);
    }

    #[test]
    fn what_is_no_number_is_null_and_comes_back() {
        let json = serde_json::to_string(&row("clean", f64::NAN)).unwrap();
        assert_eq!(json, r#"["clean","ours",null]"#);
        let back: Vec<Cell> = serde_json::from_str(&json).unwrap();
        assert!(matches!(back[2], Cell::Figure(figure) if figure.is_nan()));
    }

    #[test]
    fn a_cdf_keeps_the_slowest() {
        let values: Vec<f64> = (1..=10_000).map(f64::from).collect();
        let line = Line::cdf("ours", &values);
        assert!(line.points.len() <= CDF_POINTS);
        assert!(line.points.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(line.points.last(), Some(&(10_000.0, Some(1.0))));
        assert!(Line::cdf("none", &[]).points.is_empty());
    }

    #[test]
    fn a_histogram_counts_all() {
        let line = Line::histogram("ours", &[-5.0, 0.5, 1.5, 1.6, 99.0], 0.0, 3.0, 1.0);
        assert_eq!(line.points, [(0.0, Some(2.0)), (1.0, Some(2.0)), (2.0, Some(1.0))]);
    }

    #[test]
    fn a_table_is_text_in_columns() {
        let mut table = Table::new("delay", "from here to there", &["condition", "p50, ms"]);
        table.rows.push(vec!["clean".into(), 0.75.into()]);
        table.rows.push(vec!["5 %".into(), 120.25.into()]);
        let wanted = "\ndelay\nfrom here to there\n\ncondition  p50, ms\nclean        0.750\n5 %          120.2\n";
        assert_eq!(table.text(), wanted);
    }
}
