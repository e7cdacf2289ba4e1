//! Paths of classic models with the name of the model in them.

/// The model of a path whose body no gateway reads; None for any other path, and for one that Python has to decode.
pub fn model_in(path: &str) -> Option<&str> {
    let v2 = || path.strip_prefix("/v2/models/")?.strip_suffix("/infer");
    let v1 = || path.strip_prefix("/v1/models/")?.strip_suffix(":predict");
    let name = v2().or_else(v1)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::model_in;

    #[test]
    fn a_name_is_read_where_nothing_has_to_be_decoded() {
        assert_eq!(model_in("/v2/models/iris/infer"), Some("iris"));
        assert_eq!(model_in("/v1/models/iris:predict"), Some("iris"));
        for other in ["/v2/models/a/versions/1/infer", "/v2/models/a%2Fb/infer", "/v2/models//infer", "/v2/models/a/b"]
        {
            assert_eq!(model_in(other), None);
        }
    }
}
