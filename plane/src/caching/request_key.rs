//! Which requests have no response that may be kept, as far as that is certain here.

use crate::wire::json_values::is_null;
use crate::wire::request_fields::{Field, RequestFields};
use crate::wire::responses::writes_text;

/// A longer number may be 0 in floating point although it has another digit.
const MOST_DIGITS: usize = 16;

/// Whether the response to a request depends on chance, so that no cache has it. False: Python knows.
pub fn is_by_chance(path: &str, fields: &RequestFields<'_>) -> bool {
    let temperature = fields.of(Field::Temperature);
    writes_text(path) && is_null(fields.of(Field::Seed)) && (is_null(temperature) || is_above_zero(temperature))
}

/// Whether a value is a number in plain digits that is above 0.
fn is_above_zero(value: &[u8]) -> bool {
    value.len() <= MOST_DIGITS
        && value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
        && value.iter().any(|byte| (b'1'..=b'9').contains(byte))
}

#[cfg(test)]
mod tests {
    use super::is_by_chance;
    use crate::wire::request_fields::RequestFields;

    #[test]
    fn only_what_is_certain_is_by_chance() {
        let path = "/v1/chat/completions";
        let of = |body: &str| is_by_chance(path, &RequestFields::parse(body.as_bytes()).unwrap());
        for body in ["{}", r#"{"temperature":null,"seed":null}"#, r#"{"temperature":0.7}"#, r#"{"temperature":2}"#] {
            assert!(of(body), "{body}");
        }
        for body in ["0", "0.0", "-0", "1e-400", "0.00000000000000001", "\"1\"", "true", "[]"]
            .map(|n| format!("{{\"temperature\":{n}}}"))
        {
            assert!(!of(&body), "{body}");
        }
        assert!(!of(r#"{"seed":1}"#) && !of(r#"{"seed":"a","temperature":1}"#));
        assert!(!is_by_chance("/v1/embeddings", &RequestFields::parse(b"{}").unwrap()));
    }
}
