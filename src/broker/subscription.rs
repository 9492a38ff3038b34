//! What a consumer wants of a topic: everything, or the messages with certain tags.
//!
//! A queue entry has only the hash of its message's tag, so a broker lets through a few messages
//! too many, and clients compare the text again.

use serde_json::{Value, json};

use super::topics;
use crate::base::json as dialect;
use crate::store::record::java_hash;

/// The only way to filter that is served.
pub const TAG: &str = "TAG";
const EVERYTHING: &str = "*";
/// More tags than any subscription has.
const TAGS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub topic: String,
    /// As the consumer wrote it: `*` or `a || b`.
    pub expression: String,
    pub expression_type: String,
    /// Grows with each change on the client; usually its clock in milliseconds.
    pub version: i64,
    tags: Vec<String>,
    /// Hashes of the tags, sorted; empty with `matches_all`.
    codes: Vec<i32>,
    matches_all: bool,
}

impl Subscription {
    /// Reads an expression of tags. `None` if it names no tag at all.
    pub fn parse(topic: &str, expression: &str) -> Option<Subscription> {
        let matches_all = matches_all(expression);
        let mut tags = Vec::new();
        if !matches_all {
            let parts = expression.split("||").map(str::trim);
            tags.extend(parts.filter(|tag| !tag.is_empty()).map(str::to_owned));
            if tags.is_empty() || tags.len() > TAGS_MAX {
                return None;
            }
        }
        let codes = sorted(tags.iter().map(|tag| java_hash(tag)));
        Some(Subscription {
            topic: topic.to_owned(),
            expression: expression.to_owned(),
            expression_type: TAG.to_owned(),
            version: 0,
            tags,
            codes,
            matches_all,
        })
    }

    /// Reads one entry of a heartbeat: of Java, of Go, or of C++, which sends the version as text
    /// and leaves out empty sets.
    pub fn from_json(value: &Value) -> Result<Subscription, String> {
        let topic = dialect::text(value, "topic").ok_or("a subscription has no topic")?;
        topics::check_stored_name(topic)?;
        let expression = dialect::text(value, "subString").unwrap_or(EVERYTHING);
        let expression_type = dialect::text(value, "expressionType")
            .filter(|kind| !kind.is_empty())
            .unwrap_or(TAG);
        let listed = |name| {
            value
                .get(name)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let mut read = Subscription {
            topic: topic.to_owned(),
            expression: expression.to_owned(),
            expression_type: expression_type.to_owned(),
            version: dialect::number(value, "subVersion").unwrap_or(0),
            tags: listed("tagsSet")
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            codes: sorted(
                listed("codeSet")
                    .filter_map(Value::as_i64)
                    .map(|code| code as i32),
            ),
            matches_all: matches_all(expression) || expression_type != TAG,
        };
        if !read.matches_all && read.codes.is_empty() {
            let parsed = Subscription::parse(topic, expression)
                .ok_or_else(|| format!("the expression {expression:?} names no tag"))?;
            (read.tags, read.codes) = (parsed.tags, parsed.codes);
        }
        Ok(read)
    }

    /// Whether a message whose queue entry has this tags code may be wanted.
    pub fn matches(&self, tags_code: i64) -> bool {
        self.matches_all || self.codes.binary_search(&(tags_code as i32)).is_ok()
    }

    pub fn to_json(&self) -> Value {
        json!({
            "classFilterMode": false,
            "codeSet": self.codes,
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": self.tags,
            "topic": self.topic,
        })
    }
}

fn matches_all(expression: &str) -> bool {
    expression.is_empty() || expression == EVERYTHING
}

fn sorted(codes: impl Iterator<Item = i32>) -> Vec<i32> {
    let mut codes: Vec<i32> = codes.take(TAGS_MAX).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_split_trimmed_and_hashed() {
        let some = Subscription::parse("T", "tagA || tagB").expect("two tags");
        assert_eq!(some.codes, [3_552_231, 3_552_232]);
        assert!(some.matches(3_552_231) && !some.matches(0));
        for all in ["", "*"] {
            assert!(
                Subscription::parse("T", all).expect("all").matches(0),
                "{all:?}"
            );
        }
        assert_eq!(Subscription::parse("T", "||"), None);
        assert_eq!(Subscription::parse("T", " || "), None);
    }

    #[test]
    fn java_go_and_cpp_entries_are_read() {
        let java = json!({"classFilterMode": false, "codeSet": [3_552_231], "expressionType": "TAG",
            "subString": "tagA", "subVersion": 17, "tagsSet": ["tagA"], "topic": "T"});
        let cpp = json!({"subString": "tagA", "subVersion": "17", "topic": "T"});
        for value in [java, cpp] {
            let read = Subscription::from_json(&value).expect("a subscription");
            assert_eq!(
                (read.version, read.matches(3_552_231), read.matches(5)),
                (17, true, false)
            );
            assert_eq!(read.tags, ["tagA"]);
        }
        let all = json!({"codeSet": [], "subString": "*", "tagsSet": [], "topic": "%RETRY%G"});
        assert!(Subscription::from_json(&all).expect("all").matches(9));
        for bad in [
            json!({}),
            json!({"topic": "../x"}),
            json!({"topic": "T", "subString": "||"}),
        ] {
            assert!(Subscription::from_json(&bad).is_err(), "{bad}");
        }
    }
}
