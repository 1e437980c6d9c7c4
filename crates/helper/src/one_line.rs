//! Messages of several lines in one.

/// Joins the lines of a message. A mark below a line becomes the number of a column.
///
/// ```text
/// invalid register name `%foo`
///   libc:malloc %foo
///               ^
///   help: the registers are %ax, ...
/// ```
///
/// becomes
///
/// ```text
/// invalid register name `%foo`, at column 13 of `libc:malloc %foo`; help: the registers are %ax, ...
/// ```
pub fn one_line(message: &str) -> String {
    let lines: Vec<&str> = message.lines().collect();
    let mut text = String::new();
    let mut at = 0;
    while let Some(line) = lines.get(at).map(|line| line.trim()) {
        at += 1;
        let marked = lines.get(at).filter(|next| next.trim() == "^");
        let part = match marked.and_then(|mark| mark.find('^')) {
            Some(column) => {
                at += 1;
                let indent = lines[at - 2].len() - lines[at - 2].trim_start().len();
                match line.is_empty() {
                    true => continue,
                    false => format!(
                        "at column {} of `{line}`",
                        column.saturating_sub(indent) + 1
                    ),
                }
            }
            None if line.is_empty() => continue,
            None => line.to_owned(),
        };
        if !text.is_empty() {
            text += match (text.ends_with(':'), part.starts_with("help:")) {
                (true, _) => " ",
                (_, true) => "; ",
                _ => ", ",
            };
        }
        text += &part;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn lines_become_one() {
        assert_eq!(one_line("no function"), "no function");
        assert_eq!(
            one_line(
                "invalid name `%foo`\n  libc:malloc %foo\n              ^\n  help: they are %ax"
            ),
            "invalid name `%foo`, at column 13 of `libc:malloc %foo`; help: they are %ax"
        );
        assert_eq!(
            one_line("the event is empty\n  \n  ^\n  help: write it"),
            "the event is empty; help: write it"
        );
        assert_eq!(
            one_line("may be any of these:\n  /a/b\n  /c d"),
            "may be any of these: /a/b, /c d"
        );
    }
}
