//! Java's properties syntax, read as `java.util.Properties` reads it, and written so that both
//! can read it back.
//!
//! A logical line is `key`, then `=`, `:` or blanks, then the value. A line that begins with `#`
//! or `!` is a comment. A backslash at a line's end continues it; before another character it
//! stands for that character, and `\t \n \r \f \uXXXX` for what they name in Java.

/// One setting as it was written, with the number of the line where it begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub line: usize,
    pub key: String,
    pub value: String,
}

/// A line that no properties reader can take.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed {
    pub line: usize,
    pub why: &'static str,
}

/// The settings of a file in their order. A key may come more than once.
pub fn parse(text: &str) -> Result<Vec<Entry>, Malformed> {
    logical_lines(text)
        .into_iter()
        .map(|(line, text)| {
            let (key, value) = split(&text);
            let unescape = |part| unescape(part).map_err(|why| Malformed { line, why });
            Ok(Entry {
                line,
                key: unescape(key)?,
                value: unescape(value)?,
            })
        })
        .collect()
}

/// `value` as it has to stand in a file. What is not ASCII becomes `\uXXXX`: Java reads these
/// files as Latin-1.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for (index, c) in value.char_indices() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{c}' => out.push_str("\\f"),
            ' ' if index == 0 => out.push_str("\\ "),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}

/// Lines without comments and blank ones, continuations joined, each with its number from 1.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    // "\r\n" ends one line and "\r" alone does too, so that numbers agree with editors.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    for (index, natural) in text.split('\n').enumerate() {
        let natural = natural.trim_start_matches(is_blank);
        if open.is_none() && (natural.is_empty() || natural.starts_with(['#', '!'])) {
            continue;
        }
        let (number, mut joined) = open.take().unwrap_or((index + 1, String::new()));
        match without_continuation(natural) {
            Some(part) => {
                joined.push_str(part);
                open = Some((number, joined));
            }
            None => {
                joined.push_str(natural);
                lines.push((number, joined));
            }
        }
    }
    lines.extend(open);
    lines.retain(|(_, line)| !line.is_empty());
    lines
}

/// The line without its last backslash, if that one continues it: an odd number of them does.
fn without_continuation(line: &str) -> Option<&str> {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    (backslashes % 2 == 1).then(|| &line[..line.len() - 1])
}

/// Key and value of a logical line, escapes still in place.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c| {
        let ends = !escaped && (c == '=' || c == ':' || is_blank(c));
        escaped = c == '\\' && !escaped;
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (key, rest.trim_start_matches(is_blank))
}

fn unescape(text: &str) -> Result<String, &'static str> {
    const BAD_UNICODE: &str = "\\u needs four hexadecimal digits";
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                None => break, // Java drops a backslash at the end of the file
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let hex = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                    let unit = hex.then(|| u16::from_str_radix(&digits, 16).ok()).flatten();
                    units.push(unit.ok_or(BAD_UNICODE)?);
                    continue;
                }
                Some(other) => other,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).map_err(|_| "half of a surrogate pair")
}

/// What Java takes for white space inside a line.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let entries = parse(text).expect("well-formed text");
        entries.into_iter().map(|e| (e.key, e.value)).collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn every_separator_of_java_works() {
        let text = "a=1\nb = 2\nc: 3\nd 4\n\te\t=\t5\nf\ng =\nh==x\ni: =y";
        let wanted = [
            pair("a", "1"),
            pair("b", "2"),
            pair("c", "3"),
            pair("d", "4"),
            pair("e", "5"),
            pair("f", ""),
            pair("g", ""),
            pair("h", "=x"),
            pair("i", "=y"),
        ];
        assert_eq!(pairs(text), wanted);
    }

    #[test]
    fn comments_and_blank_lines_are_skipped() {
        assert_eq!(
            pairs("# a=1\n  ! b=2\n\n   \nc=3 # kept"),
            [pair("c", "3 # kept")]
        );
        // A comment cannot be continued, and a continuation cannot be a comment.
        assert_eq!(pairs("# a\\\nb=1"), [pair("b", "1")]);
        assert_eq!(pairs("a=1\\\n#2"), [pair("a", "1#2")]);
    }

    #[test]
    fn a_backslash_continues_a_line_and_hides_separators() {
        assert_eq!(
            pairs("a=one\\\n   two\\\r\n  three"),
            [pair("a", "onetwothree")]
        );
        assert_eq!(
            pairs("a=one\\\\\nb=2"),
            [pair("a", "one\\"), pair("b", "2")]
        );
        assert_eq!(pairs("a\\=b\\ c=1"), [pair("a=b c", "1")]);
        assert_eq!(pairs("a=x\\"), [pair("a", "x")]);
        assert_eq!(pairs("a=x\\\n\nb=1"), [pair("a", "x"), pair("b", "1")]);
    }

    #[test]
    fn escapes_are_those_of_java() {
        assert_eq!(
            pairs("a=\\t\\u00e9\\ud83d\\ude00\\q\\:"),
            [pair("a", "\té😀q:")]
        );
        let malformed = parse("x=1\na=\\u12g4").expect_err("not hexadecimal");
        assert_eq!(malformed.line, 2);
        assert!(parse("a=\\u+123").is_err());
        assert!(parse("a=\\ud83d").is_err());
    }

    #[test]
    fn line_numbers_are_those_an_editor_shows() {
        let entries = parse("#\r\n\r\na=1\\\r\n 2\r\nb=3").expect("well-formed text");
        assert_eq!((entries[0].line, entries[1].line), (3, 5));
    }

    #[test]
    fn what_is_escaped_reads_back() {
        for value in ["", " a b ", "C:\\x", "é😀", "a=b:c#d!", "l1\nl2\t"] {
            assert_eq!(pairs(&format!("k={}", escape(value))), [pair("k", value)]);
        }
    }
}
