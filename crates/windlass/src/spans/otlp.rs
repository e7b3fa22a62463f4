//! Spans as a collector takes them: the JSON of OTLP over HTTP, with ids in hexadecimal and nanoseconds in strings.
//!
//! It owns the names and numbers of the format. It must not draw ids itself: they are handed in.

use super::{Did, Ended, Span};
use crate::error::{Failure, Kind};
use serde_json::{Value, json};
use windlass_core::particulars::Trace;
use windlass_core::time::Time;

/// The numbers that the format has for kinds of spans.
const PRODUCER: u8 = 4;
const CONSUMER: u8 = 5;
/// … and for how a span ended; without a status nothing is said of it.
const OK: u8 = 1;
const ERROR: u8 = 2;

/// The document of some spans.
pub(super) fn document(
    service: &str,
    spans: &[Span],
    draw: &dyn Fn() -> Result<u64, Failure>,
) -> Result<String, Failure> {
    let spans = spans.iter().filter_map(|span| Some(object(span, span.trace()?, draw)));
    let spans = spans.collect::<Result<Vec<Value>, Failure>>()?;
    let scope = json!({ "name": "windlass", "version": env!("CARGO_PKG_VERSION") });
    let document = json!({ "resourceSpans": [{
        "resource": { "attributes": [text("service.name", service)] },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] });
    serde_json::to_string(&document).map_err(|e| Failure::new(Kind::Internal, format!("cannot write the spans: {e}")))
}

fn object(span: &Span, trace: &Trace, draw: &dyn Fn() -> Result<u64, Failure>) -> Result<Value, Failure> {
    let queue = span.queue.as_str();
    let (kind, operation) = match span.did {
        Did::Send => (PRODUCER, "send"),
        Did::Process { .. } => (CONSUMER, "process"),
    };
    let mut attributes = vec![
        text("messaging.system", "windlass"),
        text("messaging.operation.type", operation),
        text("messaging.destination.name", queue),
        text("messaging.message.id", &span.job.to_string()),
    ];
    let mut object = json!({
        "spanId": format!("{:016x}", draw()?),
        "name": format!("{operation} {queue}"),
        "kind": kind,
        "startTimeUnixNano": nanoseconds(span.from),
        "endTimeUnixNano": nanoseconds(span.to.max(span.from)),
    });
    let mut put = |name: &str, value: Value| object[name] = value;
    let mut alone = true;
    if let Did::Process { attempt, outcome, ended, linked } = &span.did {
        attributes.push(json!({ "key": "windlass.attempt", "value": { "intValue": attempt.to_string() } }));
        attributes.push(text("windlass.outcome", outcome));
        match ended {
            Ended::Well => put("status", json!({ "code": OK })),
            Ended::Badly(error) => put("status", json!({ "code": ERROR, "message": error })),
            Ended::Otherwise => {}
        }
        alone = !linked;
    }
    put("attributes", attributes.into());
    if alone {
        put("traceId", trace.id().into());
        put("parentSpanId", trace.span().into());
        put("traceState", trace.state.as_str().into());
    } else {
        put("traceId", format!("{:016x}{:016x}", draw()?, draw()?).into());
        let link = json!({ "traceId": trace.id(), "spanId": trace.span(), "traceState": trace.state });
        put("links", json!([link]));
    }
    Ok(object)
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Since 1970. The format has room for no time before that.
fn nanoseconds(time: Time) -> String {
    (u128::try_from(time.as_micros()).unwrap_or(0) * 1000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;
    use windlass_core::job::{JobId, Origin, QueueName};
    use windlass_core::particulars::Particulars;

    fn span(did: Did) -> Span {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let particulars = Particulars { trace: Trace::heard(parent, "a=1", "u=42"), ..Particulars::default() };
        Span {
            job: JobId { origin: Origin::from_random(1), offset: 7 },
            queue: Arc::new(QueueName::new(b"mail").unwrap()),
            particulars: Arc::new(particulars),
            from: Time(1_700_000_000_000_001),
            to: Time(1_700_000_002_000_000),
            did,
        }
    }

    /// The document of these, with ids that count from one.
    fn document_of(spans: &[Span]) -> Value {
        let last = Cell::new(0);
        let draw = || {
            last.set(last.get() + 1);
            Ok(last.get())
        };
        serde_json::from_str(&document("nightly", spans, &draw).unwrap()).unwrap()
    }

    #[test]
    fn the_shape_of_a_document() {
        let ended = Ended::Badly("exit status 3".into());
        let single = span(Did::Process { attempt: 2, outcome: "failed", ended, linked: false });
        let id = single.job.to_string();
        let common = |operation: &str| {
            vec![
                json!({ "key": "messaging.system", "value": { "stringValue": "windlass" } }),
                json!({ "key": "messaging.operation.type", "value": { "stringValue": operation } }),
                json!({ "key": "messaging.destination.name", "value": { "stringValue": "mail" } }),
                json!({ "key": "messaging.message.id", "value": { "stringValue": id } }),
            ]
        };
        let tried = [
            json!({ "key": "windlass.attempt", "value": { "intValue": "2" } }),
            json!({ "key": "windlass.outcome", "value": { "stringValue": "failed" } }),
        ];
        let attributes = [common("process"), tried.to_vec()].concat();
        let process = json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c", "parentSpanId": "b7ad6b7169203331",
            "spanId": "0000000000000001", "traceState": "a=1", "name": "process mail", "kind": 5,
            "startTimeUnixNano": "1700000000000001000", "endTimeUnixNano": "1700000002000000000",
            "status": { "code": 2, "message": "exit status 3" },
            "attributes": attributes,
        });
        let send = json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c", "parentSpanId": "b7ad6b7169203331",
            "spanId": "0000000000000002", "traceState": "a=1", "name": "send mail", "kind": 4,
            "startTimeUnixNano": "1700000000000001000", "endTimeUnixNano": "1700000002000000000",
            "attributes": common("send"),
        });
        let service = json!({ "key": "service.name", "value": { "stringValue": "nightly" } });
        let scope = json!({ "name": "windlass", "version": env!("CARGO_PKG_VERSION") });
        let expected = json!({ "resourceSpans": [{
            "resource": { "attributes": [service] },
            "scopeSpans": [{ "scope": scope, "spans": [process, send] }],
        }] });
        assert_eq!(document_of(&[single, span(Did::Send)]), expected);
    }

    #[test]
    fn a_job_among_others_is_nobodys_child_and_has_a_link() {
        let shared = |ended| span(Did::Process { attempt: 1, outcome: "succeeded", ended, linked: true });
        let document = document_of(&[shared(Ended::Well), shared(Ended::Otherwise)]);
        let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!(spans[0]["traceId"], "00000000000000020000000000000003");
        assert_eq!(spans[0].get("parentSpanId"), None);
        assert_eq!(spans[0]["status"], json!({ "code": 1 }));
        let link = json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "traceState": "a=1",
        });
        assert_eq!(spans[0]["links"], json!([link]));
        assert_ne!(spans[0]["traceId"], spans[1]["traceId"]);
        assert_eq!(spans[1].get("status"), None);
    }
}
