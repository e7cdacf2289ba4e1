//! The fields of a request that routing reads: model, sticky key and tenant.
//!
//! A body that Python might refuse, or that writes a field in an unusual way, is handed over: it is never read
//! differently from Python.

use std::borrow::Cow;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::headers::{first_value, Headers};
use super::json_values::{
    decoded, does_nothing, integer_of, is_null, is_text, is_true, read_members, text_of, Members, NotSure,
    MAX_TEXT_BYTES,
};
use super::members::with_member;

/// Session headers that agents and routers already send, the most specific first.
pub const SESSION_HEADERS: [&str; 6] = [
    "x-session-id",
    "x-session-token",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "session-id",
    "x-litellm-session-id",
];
/// SDKs insist on a key where the server needs none; these must not tie all of their users to one revision.
const PLACEHOLDER_KEYS: [&str; 9] =
    ["", "empty", "none", "null", "dummy", "not-needed", "unused", "no-key", "sk-no-key-required"];
/// Prefix of the sticky key of a request without a session.
const ALONE: &str = "request:";
const TENANT_BYTES: usize = 16;
const TINY_LIMIT_TOKENS: i128 = 16;
const MAX_KEY_BYTES: usize = 1024;
/// Python counts the texts of a longer body before it reads them.
pub const MAX_BODY_BYTES: usize = 1 << 20;
const MAX_FORMAT_BYTES: usize = 64 << 10;

/// Fields but `model`. Their types are the server's business: a value that the gateway cannot use counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Stream,
    StreamOptions,
    User,
    PromptCacheKey,
    Conversation,
    Params,
    ResponseFormat,
    Text,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    Stop,
    StopTokenIds,
    StopTokens,
    LogitBias,
    AllowedTokenIds,
    BadWords,
    IgnoreEos,
    MinTokens,
    StructuredOutputs,
    GuidedJson,
    GuidedRegex,
    GuidedChoice,
    GuidedGrammar,
    Tools,
    ToolChoice,
    N,
    BestOf,
    Prompt,
    Messages,
    Instructions,
    Input,
    PromptEmbeds,
    Query,
    Documents,
    Text1,
    Text2,
    CacheSalt,
    Priority,
    Temperature,
    Seed,
}

/// By `Field`, in the same order.
pub const FIELD_NAMES: [&str; 41] = [
    "stream",
    "stream_options",
    "user",
    "prompt_cache_key",
    "conversation",
    "params",
    "response_format",
    "text",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "stop",
    "stop_token_ids",
    "stop_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "min_tokens",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "tools",
    "tool_choice",
    "n",
    "best_of",
    "prompt",
    "messages",
    "instructions",
    "input",
    "prompt_embeds",
    "query",
    "documents",
    "text_1",
    "text_2",
    "cache_salt",
    "priority",
    "temperature",
    "seed",
];

/// Kinds of failure, as bits of `RequestFields::excused`.
pub const EMPTY: u8 = 1;
pub const TRUNCATED: u8 = 2;
pub const REPETITION: u8 = 4;
pub const INVALID_JSON: u8 = 8;

/// What may shape the text of the response.
const SHAPING: [Field; 17] = [
    Field::ResponseFormat,
    Field::Text,
    Field::Stop,
    Field::StopTokenIds,
    Field::StopTokens,
    Field::LogitBias,
    Field::AllowedTokenIds,
    Field::BadWords,
    Field::IgnoreEos,
    Field::MinTokens,
    Field::StructuredOutputs,
    Field::GuidedJson,
    Field::GuidedRegex,
    Field::GuidedChoice,
    Field::GuidedGrammar,
    Field::Tools,
    Field::ToolChoice,
];
const LIMITS: [Field; 3] = [Field::MaxTokens, Field::MaxCompletionTokens, Field::MaxOutputTokens];

/// The fields of one body, which they borrow.
#[derive(Clone, Debug)]
pub struct RequestFields<'a> {
    /// None where the body has no `model`, or null.
    pub model: Option<Cow<'a, str>>,
    /// `model` as it is written; empty where it is absent.
    written_model: &'a [u8],
    values: [&'a [u8]; FIELD_NAMES.len()],
}

impl<'a> RequestFields<'a> {
    /// The fields of a body, in one pass over it.
    ///
    /// # Errors
    /// NotSure, with the reason: Python reads the body, or refuses it.
    pub fn parse(body: &'a [u8]) -> Result<Self, NotSure> {
        if body.len() > MAX_BODY_BYTES {
            return Err(NotSure("body_size"));
        }
        // Python takes bytes that are no UTF-8 where it skips a value.
        std::str::from_utf8(body).map_err(|_| NotSure("utf8"))?;
        let mut members = Members::of(body).ok_or(NotSure("json"))?;
        let nothing = &body[..0];
        let mut fields = RequestFields { model: None, written_model: nothing, values: [nothing; FIELD_NAMES.len()] };
        while let Some((name, value)) = members.next_member()? {
            if name == b"model" {
                take(&mut fields.written_model, value)?;
            } else if let Some(field) = field_of(name) {
                take(&mut fields.values[field as usize], value)?;
            } else if name.contains(&b'\\') {
                return Err(NotSure("escaped_name"));
            }
        }
        fields.model = model_of(fields.written_model)?;
        Ok(fields)
    }

    /// The bytes of a field's value; empty where it is absent.
    pub fn of(&self, field: Field) -> &'a [u8] {
        self.values[field as usize]
    }

    /// All of them, by `FIELD_NAMES`.
    pub fn values(&self) -> [&'a [u8]; FIELD_NAMES.len()] {
        self.values
    }

    /// Whether the client requested a stream.
    pub fn streams(&self) -> bool {
        is_true(self.of(Field::Stream))
    }

    /// Whether a stream would end without its usage, and `with_usage` can change that.
    pub fn lacks_usage(&self) -> bool {
        let options = self.of(Field::StreamOptions);
        if is_null(options) {
            return true;
        }
        read_members(options, ["include_usage"], MAX_TEXT_BYTES).is_some_and(|[include]| !is_true(include))
    }

    /// `params.version`; empty without one.
    pub fn version(&self) -> Cow<'a, str> {
        let params = read_members(self.of(Field::Params), ["version"], MAX_TEXT_BYTES);
        params.and_then(|[version]| text_of(version)).unwrap_or_default()
    }

    /// Whether the text of the response is to be JSON.
    pub fn wants_json(&self) -> bool {
        matches!(self.format().as_deref(), Some("json_object" | "json_schema"))
    }

    /// The type of the response's format; None for none, and for what is no type.
    fn format(&self) -> Option<Cow<'a, str>> {
        let (format, text) = (self.of(Field::ResponseFormat), self.of(Field::Text));
        if !format.is_empty() {
            return type_of(format);
        }
        type_of(read_members(text, ["format"], MAX_FORMAT_BYTES).map_or(text, |[format]| format))
    }

    /// Kinds of failure that the request itself provokes: they are no evidence against a version.
    pub fn excused(&self) -> u8 {
        if LIMITS.iter().chain(&SHAPING).all(|field| self.of(*field).is_empty()) {
            return 0; // most requests
        }
        let limit = LIMITS.iter().filter_map(|field| integer_of(self.of(*field))).min();
        let ends = self.any(&[Field::Stop, Field::StopTokenIds, Field::StopTokens]);
        let steers =
            self.any(&[Field::LogitBias, Field::AllowedTokenIds, Field::BadWords, Field::IgnoreEos, Field::MinTokens]);
        let grammar = self.dictates_calls()
            || self.any(&[
                Field::StructuredOutputs,
                Field::GuidedJson,
                Field::GuidedRegex,
                Field::GuidedChoice,
                Field::GuidedGrammar,
            ]);
        let dictated = grammar || !matches!(self.format().as_deref(), None | Some("text" | "json_object"));
        let is_tiny = limit.is_some_and(|tokens| tokens < TINY_LIMIT_TOKENS);
        let kinds = [
            (TRUNCATED, limit.is_some() || steers || dictated),
            (EMPTY, is_tiny || ends || steers || grammar),
            (REPETITION, steers || dictated),
            (INVALID_JSON, ends || steers),
        ];
        kinds.iter().filter(|(_, holds)| *holds).map(|(kind, _)| kind).sum()
    }

    /// Whether any of these fields has a value that does something.
    fn any(&self, fields: &[Field]) -> bool {
        fields.iter().any(|field| !does_nothing(self.of(*field)))
    }

    fn dictates_calls(&self) -> bool {
        let tools = self.of(Field::Tools);
        if does_nothing(tools) {
            return false;
        }
        match choice_of(self.of(Field::ToolChoice)).as_ref() {
            "none" => false,
            "auto" => memchr::memmem::find(tools, br#""strict""#).is_some(),
            _ => true,
        }
    }

    /// The body of these fields with another model name; all other values keep their bytes.
    ///
    /// # Errors
    /// NotSure: the name is not written as Python writes it, so that its place in the body is not known.
    pub fn with_model(&self, body: &[u8], model: &str) -> Result<Vec<u8>, NotSure> {
        if self.written_model.contains(&b'\\') || model.bytes().any(|byte| byte < 0x20 || b"\"\\\x7f".contains(&byte)) {
            return Err(NotSure("escaped_model"));
        }
        let before: &[u8] = if self.written_model.is_empty() { b"null" } else { self.written_model };
        Ok(with_member(body, "model", format!("\"{model}\"").as_bytes(), before))
    }

    /// The body of a stream that lacks its usage, with the usage requested; all other values keep their bytes.
    pub fn with_usage(&self, body: &[u8]) -> Vec<u8> {
        let before = self.of(Field::StreamOptions);
        if is_null(before) {
            return with_member(body, "stream_options", br#"{"include_usage":true}"#, before);
        }
        let [now] = read_members(before, ["include_usage"], MAX_TEXT_BYTES).unwrap_or([b""]);
        with_member(body, "stream_options", &with_member(before, "include_usage", b"true", now), before)
    }
}

fn take<'a>(slot: &mut &'a [u8], value: &'a [u8]) -> Result<(), NotSure> {
    if !slot.is_empty() {
        return Err(NotSure("repeated_name"));
    }
    *slot = value;
    Ok(())
}

fn field_of(name: &[u8]) -> Option<Field> {
    Some(match name {
        b"stream" => Field::Stream,
        b"stream_options" => Field::StreamOptions,
        b"user" => Field::User,
        b"prompt_cache_key" => Field::PromptCacheKey,
        b"conversation" => Field::Conversation,
        b"params" => Field::Params,
        b"response_format" => Field::ResponseFormat,
        b"text" => Field::Text,
        b"max_tokens" => Field::MaxTokens,
        b"max_completion_tokens" => Field::MaxCompletionTokens,
        b"max_output_tokens" => Field::MaxOutputTokens,
        b"stop" => Field::Stop,
        b"stop_token_ids" => Field::StopTokenIds,
        b"stop_tokens" => Field::StopTokens,
        b"logit_bias" => Field::LogitBias,
        b"allowed_token_ids" => Field::AllowedTokenIds,
        b"bad_words" => Field::BadWords,
        b"ignore_eos" => Field::IgnoreEos,
        b"min_tokens" => Field::MinTokens,
        b"structured_outputs" => Field::StructuredOutputs,
        b"guided_json" => Field::GuidedJson,
        b"guided_regex" => Field::GuidedRegex,
        b"guided_choice" => Field::GuidedChoice,
        b"guided_grammar" => Field::GuidedGrammar,
        b"tools" => Field::Tools,
        b"tool_choice" => Field::ToolChoice,
        b"n" => Field::N,
        b"best_of" => Field::BestOf,
        b"prompt" => Field::Prompt,
        b"messages" => Field::Messages,
        b"instructions" => Field::Instructions,
        b"input" => Field::Input,
        b"prompt_embeds" => Field::PromptEmbeds,
        b"query" => Field::Query,
        b"documents" => Field::Documents,
        b"text_1" => Field::Text1,
        b"text_2" => Field::Text2,
        b"cache_salt" => Field::CacheSalt,
        b"priority" => Field::Priority,
        b"temperature" => Field::Temperature,
        b"seed" => Field::Seed,
        _ => return None,
    })
}

fn model_of(written: &[u8]) -> Result<Option<Cow<'_, str>>, NotSure> {
    match written {
        b"" | b"null" => Ok(None),
        [b'"', name @ .., b'"'] => decoded(name).map(Some).ok_or(NotSure("json")),
        _ => Err(NotSure("model_type")),
    }
}

fn type_of(format: &[u8]) -> Option<Cow<'_, str>> {
    if format.len() > MAX_FORMAT_BYTES {
        return Some(Cow::Borrowed("json_schema"));
    }
    read_members(format, ["type"], MAX_FORMAT_BYTES).and_then(|[kind]| text_of(kind))
}

/// `none`, `auto` or `required`: whether an answer may have calls, and whether it must.
fn choice_of(tool_choice: &[u8]) -> Cow<'_, str> {
    if does_nothing(tool_choice) {
        return Cow::Borrowed("auto");
    }
    if let Some(text) = text_of(tool_choice) {
        return text;
    }
    let [mut mode, allowed] =
        read_members(tool_choice, ["mode", "allowed_tools"], MAX_FORMAT_BYTES).unwrap_or([b"", b""]);
    if !allowed.is_empty() {
        [mode] = read_members(allowed, ["mode"], MAX_FORMAT_BYTES).unwrap_or([b""]);
    }
    text_of(mode).filter(|text| !text.is_empty()).unwrap_or(Cow::Borrowed("required"))
}

/// What may name the session of a request, and its tenant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources {
    pub session: bool,
    pub user: bool,
    pub key: bool,
}

/// The key of the split: session header, then body fields, then API key, else this request alone.
///
/// `own`: takes the place of the API key, for clients that the gateway knows.
pub fn sticky_key(
    headers: Headers<'_>,
    fields: &RequestFields<'_>,
    request_id: &str,
    sources: Sources,
    own: &str,
) -> Vec<u8> {
    if sources.session {
        let sessions = SESSION_HEADERS.iter().filter_map(|name| first_value(headers, name));
        if let Some(value) = sessions.into_iter().find(|value| !value.is_empty()) {
            return [b"session:", value].concat();
        }
    }
    if sources.user {
        let named = [fields.of(Field::User), fields.of(Field::PromptCacheKey), conversation(fields)];
        if let Some(who) = named.iter().find_map(|value| name_of(value)) {
            return format!("user:{who}").into_bytes();
        }
    }
    if sources.key && !own.is_empty() {
        return own.as_bytes().to_vec();
    }
    match api_key(headers) {
        // The key itself goes nowhere, not even into a hash that is not cryptographic.
        Some(key) if sources.key => client_of_key(key).into_bytes(),
        _ => format!("{ALONE}{request_id}").into_bytes(),
    }
}

/// Pseudonym of the tenant in 32 hexadecimal digits; empty when it is unknown.
///
/// The API key comes first: a client must not become many tenants by naming many users.
pub fn tenant(headers: Headers<'_>, fields: &RequestFields<'_>, sources: Sources, salt: &str) -> String {
    if let Some(key) = api_key(headers).filter(|_| sources.key) {
        return pseudonym(&[b"key:", key].concat(), salt);
    }
    if let Some(name) = name_of(fields.of(Field::User)).filter(|_| sources.user) {
        return pseudonym(format!("user:{name}").as_bytes(), salt);
    }
    String::new()
}

/// The client that memory shares are counted for: the API key, else the owner of the address.
///
/// The gateway does not check the key: `by_key` is false if clients may invent keys.
pub fn client(headers: Headers<'_>, owner: &str, by_key: bool) -> String {
    match api_key(headers) {
        Some(key) if by_key => client_of_key(key),
        _ => format!("address:{owner}"),
    }
}

fn client_of_key(key: &[u8]) -> String {
    format!("key:{}", hexadecimal(&Sha256::digest(key)))
}

/// A tenant's or client's name as servers see it: the beginning of a keyed hash (HMAC-SHA256), in hexadecimal.
pub fn pseudonym(name: &[u8], salt: &str) -> String {
    hexadecimal(&hmac_sha256(salt.as_bytes(), &[name])[..TENANT_BYTES])
}

/// HMAC-SHA256 of parts that follow one another.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC takes keys of every length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return [0; 32] };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Bytes in lower-case hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// A name, or of a long one the hash of how it is written; None where the value is no text, or an empty one.
fn name_of(value: &[u8]) -> Option<Cow<'_, str>> {
    if value.len() > MAX_KEY_BYTES && is_text(value) {
        return Some(Cow::Owned(format!("sha256:{}", hexadecimal(&Sha256::digest(value)))));
    }
    text_of(value).filter(|name| !name.is_empty())
}

fn conversation<'a>(fields: &RequestFields<'a>) -> &'a [u8] {
    let conversation = fields.of(Field::Conversation);
    read_members(conversation, ["id"], MAX_TEXT_BYTES).map_or(conversation, |[id]| id)
}

/// The key of a request that may be checked nowhere; None for one of another scheme, and for a placeholder.
fn api_key<'a>(headers: Headers<'a>) -> Option<&'a [u8]> {
    let (scheme, key) = scheme_and_key(first_value(headers, "authorization")?);
    (scheme.eq_ignore_ascii_case(b"bearer") && !is_placeholder(key)).then_some(key)
}

/// The scheme of an `Authorization`, and what follows it.
pub fn scheme_and_key(value: &[u8]) -> (&[u8], &[u8]) {
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    (&value[..end], value[end..].trim_ascii())
}

/// Whether a key is one that means none.
pub fn is_placeholder(key: &[u8]) -> bool {
    PLACEHOLDER_KEYS.iter().any(|placeholder| key.eq_ignore_ascii_case(placeholder.as_bytes()))
}
