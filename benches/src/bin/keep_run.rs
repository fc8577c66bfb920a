//! Keeps a run of the benches: `cargo run -p watch-audio-benches --bin keep-run -- [FOLDER or FILE]…`
//!
//! Takes the records (`target/benches/*.json` unless said otherwise) into `benches/runs/DATE`, with their pages and a
//! picture, and writes the README's table. A figure that no record has is left out.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use watch_audio_benches::record::{Cell, Record};
use watch_audio_benches::{Failed, page};
use watch_audio_probes::page::{date_and_time, scale};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut from: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if from.is_empty() {
        from.push(root.join("target/benches"));
    }
    match keep(&root, &from) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keep-run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn keep(root: &Path, from: &[PathBuf]) -> Result<(), Failed> {
    let records = records(from)?;
    let date = date_and_time(SystemTime::now())[..10].to_owned();
    let runs = root.join("benches/runs");
    let run = runs.join(&date);
    fs::create_dir_all(&run).map_err(Failed::to("make the run's folder"))?;
    for record in &records {
        let json = serde_json::to_string(record).map_err(Failed::to("write a record"))?;
        write(&run.join(format!("{}.json", record.bench)), &json)?;
        write(&run.join(format!("{}.html", record.bench)), &page::html(record))?;
    }
    let series = |title: &&str| records.iter().flat_map(|record| &record.series).find(|series| series.title == **title);
    let picture = PICTURES.iter().find_map(series);
    if let Some(series) = picture {
        write(&run.join("picture.svg"), &page::plot(series).picture())?;
    }
    let readme = root.join("README.md");
    let text = fs::read_to_string(&readme).map_err(Failed::to("read the README"))?;
    let table = table(&records, &date, picture.map(|series| page::plot(series).words()));
    write(&readme, &with_table(&text, &table)?)?;
    let names: Vec<&str> = records.iter().map(|record| record.bench.as_str()).collect();
    eprintln!("{}: {}", run.display(), names.join(", "));
    Ok(())
}

/// All records in these files and folders; of each bench there is one.
fn records(from: &[PathBuf]) -> Result<Vec<Record>, Failed> {
    let mut files = Vec::new();
    for path in from {
        if path.is_file() {
            files.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).map_err(|error| Failed(format!("cannot read {}: {error}", path.display())))?;
        let entries = entries.filter_map(|entry| Some(entry.ok()?.path()));
        files.extend(entries.filter(|file| file.extension().is_some_and(|extension| extension == "json")));
    }
    files.sort();
    let mut records: Vec<Record> = Vec::new();
    for file in files {
        let text = fs::read(&file).map_err(|error| Failed(format!("cannot read {}: {error}", file.display())))?;
        let record: Record = serde_json::from_slice(&text)
            .map_err(|error| Failed(format!("{} is no record: {error}", file.display())))?;
        if records.iter().any(|known| known.bench == record.bench) {
            return Err(Failed(format!("there are two records of {}: name the files", record.bench)));
        }
        records.push(record);
    }
    if records.is_empty() {
        return Err(Failed("there is no record: run a bench first".into()));
    }
    Ok(records)
}

/// The README's table: the baseline, ours, and their ratio.
fn table(records: &[Record], date: &str, picture: Option<String>) -> String {
    let beside = match records.iter().any(|record| record.load[0] > page::QUIET) {
        true => " Other work ran on the machine (the loads are below): the ratios say more than the figures.",
        false => "",
    };
    let mut text = format!(
        "The run of {date}. The baseline is the Python helper, and for the relay a few lines of Node on `ws`.{beside}\n\n\
         | | baseline | ours | ratio |\n| --- | --- | --- | --- |\n"
    );
    for pick in PICKS {
        let of = |row: &[&str]| records.iter().find_map(|record| pick.figure(record, row));
        let (Some(baseline), Some(ours)) = (of(pick.baseline), of(pick.ours)) else { continue };
        let shown = |figure: f64| format!("{}{}", scale::number(figure), pick.unit);
        let (what, ratio) = (pick.what, ratio(ours, baseline));
        let _ = writeln!(text, "| {what} | {} | {} | {ratio} |", shown(baseline), shown(ours));
    }
    if let Some(words) = picture {
        let _ = write!(text, "\n![{words}](benches/runs/{date}/picture.svg)\n");
    }
    text.push('\n');
    for record in records {
        let name = &record.bench;
        let _ = writeln!(text, "- [`{name}`](benches/runs/{date}/{name}.html): {}.", page::circumstances(record));
    }
    text
}

fn ratio(ours: f64, baseline: f64) -> String {
    match ours / baseline {
        _ if baseline == 0.0 => "–".to_owned(),
        ratio if ratio.abs() < 0.001 => "under 0.001".to_owned(),
        ratio => scale::number(ratio),
    }
}

/// A figure for the README.
struct Pick {
    what: &'static str,
    table: &'static str,
    column: &'static str,
    /// The leading texts of the row.
    baseline: &'static [&'static str],
    ours: &'static [&'static str],
    unit: &'static str,
}

impl Pick {
    fn figure(&self, record: &Record, row: &[&str]) -> Option<f64> {
        let table = record.tables.iter().find(|table| table.title == self.table)?;
        let column = table.columns.iter().position(|column| column == self.column)?;
        let named = |cells: &&Vec<Cell>| {
            row.iter().zip(cells.iter()).all(|(name, cell)| matches!(cell, Cell::Text(text) if text == name))
        };
        match table.rows.iter().find(named)?.get(column)? {
            Cell::Figure(figure) if figure.is_finite() => Some(*figure),
            _ => None,
        }
    }
}

/// The text with the table in its place.
fn with_table(text: &str, table: &str) -> Result<String, Failed> {
    let places = text.find(BEGIN).zip(text.find(END)).filter(|(begin, end)| begin < end);
    let (begin, end) = places.ok_or_else(|| Failed(format!("the README has no {BEGIN} and {END}")))?;
    Ok(format!("{}\n{table}{}", &text[..begin + BEGIN.len()], &text[end..]))
}

fn write(file: &Path, text: &str) -> Result<(), Failed> {
    fs::write(file, text).map_err(|error| Failed(format!("cannot write {}: {error}", file.display())))
}

const BEGIN: &str = "<!-- the figures of the kept run -->";
const END: &str = "<!-- end of the figures -->";
/// The series that the README shows: the first of them that was measured.
const PICTURES: [&str; 2] = ["Up: delay, 1.5 s stall", "Down: delay, clean"];

const fn pick(
    what: &'static str,
    (table, column, unit): (&'static str, &'static str, &'static str),
    baseline: &'static [&'static str],
    ours: &'static [&'static str],
) -> Pick {
    Pick { what, table, column, baseline, ours, unit }
}

const START: &str = "Start of a call";
const DOWN: &str = "Down: delay";
const UP: &str = "Up: delay";
const DOWN_AFTER: &str = "Down: what an event leaves behind";
const UP_AFTER: &str = "Up: what an event leaves behind";
const ARRIVALS: &str = "Inter-arrival at the Watch";
const CALL: &str = "What a call costs";
const RELAY: &str = "What a message costs a relay";
const RELAY_MEMORY: &str = "What a relay holds in memory";
const TEN: &str = "10 bridges of 50/s each way";
const HUNDRED: &str = "100 bridges of 50/s each way";
const PICKS: &[Pick] = &[
    pick("spawn to offer", (START, "spawn to offer, ms", " ms"), &["baseline"], &["ours"]),
    pick("answer to connected", (START, "answer to connected, ms", " ms"), &["baseline"], &["ours"]),
    pick("down, p50", (DOWN, "p50, ms", " ms"), &["clean", "baseline"], &["clean", "ours"]),
    pick("down, p99", (DOWN, "p99, ms", " ms"), &["clean", "baseline"], &["clean", "ours"]),
    pick("down at 10 % loss, p50", (DOWN, "p50, ms", " ms"), &["10 % loss", "baseline"], &["10 % loss", "ours"]),
    pick(
        "down at 0 to 60 ms jitter, p50",
        (DOWN, "p50, ms", " ms"),
        &["0 to 60 ms jitter", "baseline"],
        &["0 to 60 ms jitter", "ours"],
    ),
    pick(
        "missing at 5 % loss and 0 to 60 ms jitter",
        (DOWN, "missing, %", " %"),
        &["5 % loss and 0 to 60 ms jitter", "baseline"],
        &["5 % loss and 0 to 60 ms jitter", "ours"],
    ),
    pick("missing at 10 % loss", (DOWN, "missing, %", " %"), &["10 % loss", "baseline"], &["10 % loss", "ours"]),
    pick(
        "down 5 s after one lost packet: longer by",
        (DOWN_AFTER, "+5 s, ms", " ms"),
        &["one lost packet", "baseline"],
        &["one lost packet", "ours"],
    ),
    pick("up, p50", (UP, "p50, ms", " ms"), &["clean", "baseline"], &["clean", "ours"]),
    pick(
        "up 5 s after a stall of 1.5 s: longer by",
        (UP_AFTER, "+5 s, ms", " ms"),
        &["1.5 s stall", "baseline"],
        &["1.5 s stall", "ours"],
    ),
    pick("off the beat of 20 ms, p99", (ARRIVALS, "off 20 ms p99", " ms"), &["1", "baseline"], &["1", "ours"]),
    pick("CPU a second of a call", (CALL, "CPU a call-second, ms", " ms"), &["baseline helper"], &["our helper"]),
    pick(
        "the same, Opus passed through",
        (CALL, "CPU a call-second, ms", " ms"),
        &["baseline helper"],
        &["our bridge, Opus"],
    ),
    pick("memory of a call (PSS)", (CALL, "PSS, MiB", " MiB"), &["baseline helper"], &["our helper"]),
    pick("on disk", (CALL, "on disk, MiB", " MiB"), &["baseline helper"], &["our helper"]),
    pick("calls on one core", (CALL, "calls on one core", ""), &["baseline helper"], &["our helper"]),
    pick("relay: messages a core-second", (RELAY, "messages per core-second", ""), &[TEN, "baseline"], &[TEN, "ours"]),
    pick("relay: p99", (RELAY, "p99, µs", " µs"), &[TEN, "baseline"], &[TEN, "ours"]),
    pick(
        "relay: memory, 100 bridges",
        (RELAY_MEMORY, "in all, MiB", " MiB"),
        &[HUNDRED, "baseline"],
        &[HUNDRED, "ours"],
    ),
];

#[cfg(test)]
mod tests {
    use watch_audio_benches::record::Table;

    use super::*;

    fn record(bench: &str) -> Record {
        let mut start = Table::new("Start of a call", "", &["subject", "spawn to offer, ms"]);
        start.rows.push(vec!["baseline".into(), 200.0.into()]);
        start.rows.push(vec!["ours".into(), 5.0.into()]);
        let mut down = Table::new(DOWN, "", &["condition", "subject", "p50, ms"]);
        down.rows.push(vec!["clean".into(), "baseline".into(), 80.0.into()]);
        down.rows.push(vec!["clean".into(), "ours".into(), f64::NAN.into()]);
        Record { tables: vec![start, down], ..Record::new(bench) }
    }

    #[test]
    fn the_table_has_what_was_measured_and_nothing_else() {
        let table = table(&[record("latency")], "2026-01-02", None);
        assert!(table.contains("| spawn to offer | 200 ms | 5 ms | 0.025 |"), "{table}");
        assert!(!table.contains("down, p50"), "{table}");
        assert!(table.contains("- [`latency`](benches/runs/2026-01-02/latency.html): Commit "), "{table}");
    }

    #[test]
    fn a_ratio_can_be_read() {
        assert_eq!([ratio(1.0, 4.0), ratio(1.0, 0.0), ratio(-0.1, 200.0)], ["0.25", "–", "under 0.001"]);
    }

    #[test]
    fn it_goes_in_its_place_as_often_as_one_likes() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nbehind\n");
        let once = with_table(&text, "new\n").unwrap();
        assert_eq!(once, format!("before\n{BEGIN}\nnew\n{END}\nbehind\n"));
        assert_eq!(with_table(&once, "new\n").unwrap(), once);
        assert!(with_table("without", "new").is_err());
    }

    #[test]
    fn two_records_of_a_bench_are_one_too_many() {
        let folder = tempfile::tempdir().unwrap();
        record("latency").store(folder.path()).unwrap();
        assert_eq!(records(&[folder.path().to_owned()]).unwrap().len(), 1);
        let again = [folder.path().to_owned(), folder.path().join("latency.json")];
        assert!(records(&again).unwrap_err().to_string().contains("two records of latency"));
        assert!(records(&[]).is_err());
    }
}
