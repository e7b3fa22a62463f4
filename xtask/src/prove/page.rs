//! The table of figures in `docs/proof.md`: one row a proof, replaced when it is taken again.

use std::path::Path;

/// The first row of the table of figures.
const HEADING: &str = "| proof | figure | commit | date |\n";

/// Replaces the row of a proof on the page.
pub(super) fn note(page: &Path, name: &str, figure: &str, commit: &str, date: &str) -> Result<(), String> {
    let shown = page.display();
    let text = std::fs::read_to_string(page).map_err(|e| format!("cannot read {shown}: {e}"))?;
    let text = with_row(&text, name, figure, commit, date)
        .ok_or_else(|| format!("{shown} has no row of the table that begins with | `{name}` |"))?;
    std::fs::write(page, text).map_err(|e| format!("cannot write {shown}: {e}"))
}

fn with_row(text: &str, name: &str, figure: &str, commit: &str, date: &str) -> Option<String> {
    // The page has another table whose rows begin alike.
    let (before, table) = text.split_once(HEADING)?;
    let begin = format!("| `{name}` |");
    let old = table.lines().find(|line| line.starts_with(&begin))?;
    // A bar would end the cell.
    let row = format!("{begin} {} | {commit} | {date} |", figure.replace('|', "/"));
    Some(format!("{before}{HEADING}{}", table.replacen(old, &row, 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_row_of_that_name_changes() {
        let other = "| `sim` | what it shows |\n\n";
        let page =
            format!("{other}{HEADING}| `kill` | not yet taken | | |\n| `sim` | 5 seeds | abc | 2026-01-01 |\nend\n");
        let text = with_row(&page, "sim", "6 seeds | 1 s", "def-dirty", "2026-02-02").unwrap();
        let row = "| `sim` | 6 seeds / 1 s | def-dirty | 2026-02-02 |";
        assert_eq!(text, format!("{other}{HEADING}| `kill` | not yet taken | | |\n{row}\nend\n"));
        assert_eq!(with_row(&page, "store", "", "", ""), None);
    }
}
