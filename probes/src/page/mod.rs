//! Pages that a browser opens without a network: one file, no script, light and dark, wide and narrow.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

pub mod call;
pub mod file;
pub mod plot;
pub mod scale;

/// A whole page. `title` is text, `body` is HTML.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"robots\" content=\"noindex\">\n\
         <title>{}</title>\n<style>\n{}{PAGE_CSS}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title),
        plot::PLOT_CSS,
    )
}

/// Text as HTML, in an attribute too. What has no place in HTML is left out.
pub fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c if c.is_whitespace() => html.push(' '),
            c if c.is_control() => {}
            c => html.push(c),
        }
    }
    html
}

/// A table. A column whose cells are all figures stands at the right. The first column names its row; a name like the one
/// above it is only there to be read aloud.
pub fn table(caption: &str, columns: &[String], rows: &[Vec<Cell>]) -> String {
    let figures = |n: usize| rows.iter().all(|row| !matches!(row.get(n), Some(Cell::Words(_)))) && n > 0;
    let class = |n: usize| if figures(n) { " class=\"figure\"" } else { "" };
    let mut html = format!("<div class=\"scroll\"><table>\n<caption>{}</caption>\n", escape(caption));
    if columns.iter().any(|column| !column.is_empty()) {
        html += "<thead><tr>";
        for (n, column) in columns.iter().enumerate() {
            let _ = write!(html, "<th scope=\"col\"{}>{}</th>", class(n), escape(column));
        }
        html += "</tr></thead>\n";
    }
    html += "<tbody>\n";
    let mut above = None;
    for row in rows {
        let again = row.len() > 1 && above.replace(row.first()) == Some(row.first());
        html += if again { "<tr class=\"again\">" } else { "<tr>" };
        for (n, cell) in row.iter().enumerate() {
            let text = match cell {
                Cell::Words(words) | Cell::Figure(words) => escape(words),
            };
            let _ = match n {
                0 => write!(html, "<th scope=\"row\">{text}</th>"),
                n => write!(html, "<td{}>{text}</td>", class(n)),
            };
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

/// A cell of a table, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A name, or words.
    Words(String),
    /// A figure.
    Figure(String),
}

/// A moment in UTC: `2026-11-30 17:42`.
pub fn date_and_time(moment: SystemTime) -> String {
    let seconds = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    // Days since the first of March of the year 0, in eras of 400 years: leap days come last.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let (month, day) =
        (if from_march < 10 { from_march + 3 } else { from_march - 9 }, day - (153 * from_march + 2) / 5 + 1);
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
}

/// For a whole page.
const PAGE_CSS: &str = include_str!("page.css");

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Whether every tag is closed where it should be and nothing is fetched from anywhere.
    pub(crate) fn well_formed(html: &str) {
        let mut open = Vec::new();
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            let end = at + rest[at..].find('>').unwrap_or_else(|| panic!("a tag without an end: {}", &rest[at..]));
            let tag = &rest[at + 1..end];
            assert!(!tag.contains('<'), "a tag in a tag: {tag}");
            assert!(tag.matches('"').count().is_multiple_of(2), "an attribute without an end: {tag}");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            match tag {
                _ if tag.starts_with("!doctype") || tag.ends_with('/') || ["meta", "br"].contains(&name) => {}
                _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "before {}", &rest[end..]),
                _ => open.push(name),
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "never closed: {open:?}");
        let own = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for foreign in ["http:", "https:", "url(", "@import", "src=", "<script", "<link", "javascript:"] {
            assert!(!own.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("<script>\"&'\n\u{0}\u{7f}ü</script>"), "&lt;script&gt;&quot;&amp;&#39; ü&lt;/script&gt;");
        let cell = |text: &str| Cell::Words(text.to_owned());
        let html = table("<b>", &["\"".into()], &[vec![cell("<i>"), cell("'>")]]);
        well_formed(&page("</title><script>", &html));
    }

    #[test]
    fn dates_are_right_on_leap_days_and_at_the_turn_of_a_year() {
        let at = |seconds| date_and_time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00");
        assert_eq!(at(951_827_696), "2000-02-29 12:34");
        assert_eq!(at(1_767_225_599), "2025-12-31 23:59");
        assert_eq!(at(1_796_060_520), "2026-11-30 17:42");
    }
}
