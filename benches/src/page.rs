//! A bench's record as a page that opens without a network: what was measured where, plots, tables.

use std::fmt::Write as _;

use watch_audio_probes::page::plot::{self, Plot};
use watch_audio_probes::page::{self, escape};

use crate::record::{Cell, Kind, Record, Series, Table};

/// The page of a record.
pub fn html(record: &Record) -> String {
    let mut body = format!(
        "<header><p class=\"kind\">Bench</p>\n<h1>{}</h1>\n<p class=\"about\">{}</p></header>\n",
        escape(&record.bench),
        escape(&circumstances(record)),
    );
    if record.profile != "release" {
        body += "<p class=\"warning\">Not a release build: these figures show that the bench runs, not how fast the program is.</p>\n";
    }
    if record.load[0] > QUIET {
        let _ = writeln!(
            body,
            "<p class=\"warning\">The machine had other work before the run, and perhaps beside it: a load of {:.1} on {} cores.</p>",
            record.load[0], record.machine.cores
        );
    }
    if !record.series.is_empty() {
        body += "<section class=\"plots\">\n";
        record.series.iter().for_each(|series| body += &plot(series).figure());
        body += "</section>\n";
    }
    record.tables.iter().for_each(|one| body += &table(one));
    page::page(&format!("Bench: {}", record.bench), &body)
}

/// A series as a plot.
pub fn plot(series: &Series) -> Plot {
    let line = |line: &crate::record::Line| plot::Line {
        name: line.name.clone(),
        points: line.points.iter().map(|(x, y)| (*x, y.unwrap_or(f64::NAN))).collect(),
    };
    Plot {
        title: series.title.clone(),
        x_label: series.x_label.clone(),
        y_label: series.y_label.clone(),
        kind: match series.kind {
            Kind::Line => plot::Kind::Line,
            Kind::Cdf => plot::Kind::Cdf,
            Kind::Histogram => plot::Kind::Histogram,
            Kind::Bars => plot::Kind::Bars,
        },
        lines: series.lines.iter().map(line).collect(),
        x: None,
    }
}

/// The commit, the build, the machine and its load, in a line.
pub fn circumstances(record: &Record) -> String {
    let Record { commit, profile, machine, load, versions, .. } = record;
    let [one, five, fifteen] = load;
    let mut words = format!(
        "Commit {commit}, {profile} build; {}, {} cores, kernel {}; load {one:.2} {five:.2} {fifteen:.2}",
        machine.processor, machine.cores, machine.kernel
    );
    for (name, version) in versions.iter().filter(|(_, version)| !version.is_empty()) {
        // Some say their name themselves.
        let _ = match version.contains(name.as_str()) {
            true => write!(words, "; {version}"),
            false => write!(words, "; {name} {version}"),
        };
    }
    words
}

fn table(table: &Table) -> String {
    let cell = |cell: &Cell| match cell {
        Cell::Text(text) => page::Cell::Words(text.clone()),
        Cell::Figure(_) => page::Cell::Figure(cell.text()),
    };
    let rows: Vec<Vec<page::Cell>> = table.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let note =
        if table.note.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>\n", escape(&table.note)) };
    format!("<section class=\"table\">{}{note}</section>\n", page::table(&table.title, &table.columns, &rows))
}

/// A run on a machine that does nothing else begins below this load.
pub const QUIET: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Line;

    #[test]
    fn everything_of_a_record_is_on_its_page() {
        let mut record = Record::new("<bench>");
        record.profile = "dev".into();
        record.load = [3.0, 2.0, 1.0];
        let mut table = Table::new("delay <down>", "from \"here\" on", &["condition", "subject", "p50, ms"]);
        table.rows.push(vec!["clean".into(), "ours".into(), 0.75.into()]);
        table.rows.push(vec!["clean".into(), "<script>".into(), f64::NAN.into()]);
        record.tables.push(table);
        for kind in [Kind::Line, Kind::Cdf, Kind::Histogram, Kind::Bars] {
            let points = vec![(0.0, Some(0.5)), (1.0, None), (2.0, Some(1.0))];
            record.series.push(Series {
                title: format!("{kind:?} & more"),
                x_label: "x, ms".into(),
                y_label: "y".into(),
                kind,
                lines: vec![Line { name: "<ours>".into(), points }],
            });
        }
        let html = html(&record);
        for text in [
            "&lt;bench&gt;",
            "Not a release build",
            "a load of 3.0",
            "load 3.00 2.00 1.00",
            "delay &lt;down&gt;",
            "from &quot;here&quot; on",
            "<td class=\"figure\">0.750</td>",
            "<td>&lt;script&gt;</td><td class=\"figure\">–</td>",
            "Line &amp; more",
            "Cdf &amp; more",
            "Histogram &amp; more",
            "Bars &amp; more",
            "&lt;ours&gt;",
        ] {
            assert!(html.contains(text), "{text} in {html}");
        }
        for foreign in ["http:", "https:", "<script", "src=", "NaN"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_quiet_release_run_has_no_warning() {
        let record = Record { profile: "release".into(), load: [0.1; 3], ..Record::new("quiet") };
        assert!(!html(&record).contains("warning\">"));
    }
}
