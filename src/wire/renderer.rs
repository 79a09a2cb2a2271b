use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::derive::is_known_release;
use super::table_printer::TablePrint;
use super::{
    FeedEncoding, FrameEnvelope, IncludeObjectPolicy, JsonLayout, ListFrame, ListMeta, MetadataRenderer,
    ObjectRevision, ProtobufJsonTranscoder, Representation, TablePrinter, TranscodeError, TranscodeRefusal, metrics,
    table, without_managed_fields,
};
use kubeapi::{EventType, MetaApiVersion, ResourceVersion};

/// Writes the objects of one feed in one representation: verbatim or derived.
///
/// Clones share its state. Derived output is exact or [`TranscodeError`].
#[derive(Clone)]
pub struct ObjectRenderer {
    state: Arc<ObjectRendererState>,
    /// Whether `metadata.managedFields` is left out.
    is_reduced: bool,
}

struct ObjectRendererState {
    representation: Representation,
    /// The envelope of the rendered output.
    envelope: FrameEnvelope,
    method: RenderMethod,
    /// The minor version of the release for which the renderer writes; 0 if the output does not depend on the release.
    release: u32,
    revoked: AtomicBool,
    disproven: AtomicBool,
}

enum RenderMethod {
    /// Bodies are sent as they were received.
    Verbatim,
    /// Protobuf bodies are converted to JSON.
    Json(ProtobufJsonTranscoder),
    /// Only the metadata is sent, from bodies of this encoding.
    Metadata(MetadataRenderer, FeedEncoding),
    /// Table rows are sent without their objects.
    Cells,
    /// Table rows are sent with their objects' metadata.
    Rows(MetadataRenderer),
    /// Objects are printed as Table rows.
    Print(TablePrint),
}

impl ObjectRenderer {
    /// Returns a renderer that writes bodies in `feed`'s encoding unchanged.
    pub fn verbatim(feed: &FrameEnvelope) -> Self {
        let representation = Representation::verbatim(feed.encoding());
        Self::new(representation, feed.clone(), RenderMethod::Verbatim, 0)
    }

    fn new(representation: Representation, envelope: FrameEnvelope, method: RenderMethod, release: u32) -> Self {
        let [revoked, disproven] = std::array::from_fn(|_| AtomicBool::new(false));
        let state = ObjectRendererState { representation, envelope, method, release, revoked, disproven };
        Self { state: Arc::new(state), is_reduced: false }
    }

    /// Returns the renderer for a representation that may be [reduced](Representation::Reduced). A reduced one leaves
    /// `metadata.managedFields` out before it writes a body, and ends with this one.
    ///
    /// Upstream's own output is compared with this renderer's, because no server leaves the field out (W15).
    #[must_use]
    pub fn with_fields_of(self, representation: Representation) -> Self {
        let is_reduced = matches!(representation, Representation::Reduced(..));
        Self { is_reduced, ..self }
    }

    /// Returns a renderer for another representation of `feed`'s bodies, as a server of release `1.minor` writes it.
    ///
    /// `None` for representations that are not derived: Tables, except from rows; anything except Tables from rows;
    /// protobuf from JSON; JSON of a kind or for a release that is not in the table; `v1beta1` metadata in protobuf,
    /// whose lists have other field numbers.
    pub fn derived(representation: Representation, feed: &FrameEnvelope, minor: u32) -> Option<Self> {
        if representation == Representation::verbatim(feed.encoding()) {
            return Some(Self::verbatim(feed));
        }
        let rows = feed.encoding() == FeedEncoding::Table;
        let (method, envelope) = match representation {
            Representation::Table(_) if !rows => return None,
            Representation::Table(IncludeObjectPolicy::None) => (RenderMethod::Cells, feed.clone()),
            Representation::Table(IncludeObjectPolicy::Metadata | IncludeObjectPolicy::Object) => {
                (RenderMethod::Rows(MetadataRenderer::for_server(minor, feed.api_version(), feed.kind())), feed.clone())
            }
            Representation::Object(FeedEncoding::Protobuf | FeedEncoding::Table)
            | Representation::Printed(_)
            | Representation::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1beta1)
            | Representation::Reduced(..) => return None,
            _ if rows => return None,
            Representation::Object(FeedEncoding::Json) => {
                let transcoder = ProtobufJsonTranscoder::for_server(minor, feed.api_version(), feed.kind())?;
                (
                    RenderMethod::Json(transcoder),
                    FrameEnvelope::new(FeedEncoding::Json, feed.api_version(), feed.kind(), feed.layout()),
                )
            }
            Representation::Metadata(encoding, version) => {
                let metadata = MetadataRenderer::for_server(minor, feed.api_version(), feed.kind());
                let envelope =
                    FrameEnvelope::new(encoding, version.group_version(), PARTIAL_OBJECT_METADATA, JsonLayout::BuiltIn);
                (RenderMethod::Metadata(metadata, feed.encoding()), envelope)
            }
        };
        Some(Self::new(representation, envelope, method, minor))
    }

    /// Returns a renderer that prints the rows of `feed`'s custom resources as of `now`, as a server of release
    /// `1.minor` does. `None` for releases that are not in the table.
    pub fn printed(
        feed: &FrameEnvelope,
        printer: Arc<TablePrinter>,
        include: IncludeObjectPolicy,
        (minor, now): (u32, SystemTime),
    ) -> Option<Self> {
        let metadata = MetadataRenderer::for_server(minor, feed.api_version(), feed.kind());
        let envelope = FrameEnvelope::new(FeedEncoding::Table, feed.api_version(), feed.kind(), JsonLayout::Custom);
        let now = now.duration_since(UNIX_EPOCH).ok()?.as_nanos().try_into().ok()?;
        let method = RenderMethod::Print(TablePrint { printer, include, metadata, now });
        is_known_release(minor).then(|| Self::new(Representation::Printed(include), envelope, method, minor))
    }

    /// Returns the representation that the renderer writes.
    pub fn representation(&self) -> Representation {
        if self.is_reduced { self.state.representation.reduced() } else { self.state.representation }
    }

    /// Returns the envelope of the rendered bodies.
    pub fn envelope(&self) -> &FrameEnvelope {
        &self.state.envelope
    }

    /// Returns whether bodies are sent as received.
    pub fn is_verbatim(&self) -> bool {
        matches!(self.state.method, RenderMethod::Verbatim) && !self.is_reduced
    }

    /// Returns whether the output depends on the time of a request, so that it must not be cached.
    pub fn is_of_one_request(&self) -> bool {
        matches!(self.state.method, RenderMethod::Print(_))
    }

    /// Returns the release whose bodies it writes. Callers that cache a body must store the release with it, because
    /// bodies of other releases may differ.
    pub fn release(&self) -> u32 {
        self.state.release
    }

    /// Revokes the renderer and all its clones, which must not be used any longer.
    pub fn revoke(&self) {
        self.state.revoked.store(true, Ordering::Release);
    }

    pub fn is_revoked(&self) -> bool {
        self.state.revoked.load(Ordering::Acquire)
    }

    /// Records that upstream's output differs from the renderer's, so earlier output may have been wrong. Callers call
    /// it before [`revoke`](Self::revoke).
    pub fn mark_mismatch(&self) {
        self.state.disproven.store(true, Ordering::Relaxed);
    }

    pub fn is_mismatched(&self) -> bool {
        self.state.disproven.load(Ordering::Relaxed)
    }

    /// Returns the body in the renderer's representation, in the normal form of [`wire`](super). It shares `body`'s
    /// bytes where possible.
    pub fn body(&self, body: &Bytes) -> Result<Bytes, TranscodeError> {
        self.body_of(&self.counted_source(body))
    }

    fn body_of(&self, body: &Bytes) -> Result<Bytes, TranscodeError> {
        match (&self.state.method, self.state.representation.encoding()) {
            (RenderMethod::Verbatim, _) => Ok(body.clone()),
            (RenderMethod::Metadata(metadata, FeedEncoding::Protobuf), FeedEncoding::Protobuf) => {
                metadata.protobuf(body)
            }
            (RenderMethod::Metadata(metadata, FeedEncoding::Json), FeedEncoding::Protobuf) => {
                metadata.protobuf_from_json(body)
            }
            _ => {
                // JSON is up to twice its protobuf, metadata is most of a small object.
                let growth = if matches!(self.state.method, RenderMethod::Json(_)) { 2 } else { 1 };
                let mut out = Vec::with_capacity(body.len() * growth);
                self.put_source(body, &mut out)?;
                Ok(out.into())
            }
        }
    }

    /// Appends the rendered body. If the body is refused, `out` is unchanged.
    pub fn put_body(&self, body: &Bytes, out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        self.put_source(&self.counted_source(body), out)
    }

    fn put_source(&self, body: &Bytes, out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        match (&self.state.method, self.state.representation.encoding()) {
            (RenderMethod::Print(print), _) => print.put_row(body, out),
            (RenderMethod::Json(transcoder), _) => transcoder.json(body, out),
            (RenderMethod::Metadata(metadata, FeedEncoding::Protobuf), FeedEncoding::Json) => metadata.json(body, out),
            (RenderMethod::Metadata(metadata, FeedEncoding::Json), FeedEncoding::Json) => {
                metadata.json_from_json(body, out)
            }
            (RenderMethod::Cells, _) => put_row(body, out, |_, out| {
                out.extend_from_slice(b"null");
                Ok(())
            }),
            (RenderMethod::Rows(metadata), _) => put_row(body, out, |object, out| {
                out.extend_from_slice(PARTIAL_OBJECT_HEAD);
                metadata.json_from_json(object, out)
            }),
            _ => {
                out.extend_from_slice(&self.body_of(body)?);
                Ok(())
            }
        }
    }

    /// Returns the bytes from which a body is written.
    fn source<'a>(&self, body: &'a Bytes) -> Cow<'a, Bytes> {
        if self.is_reduced { without_managed_fields(body) } else { Cow::Borrowed(body) }
    }

    fn counted_source<'a>(&self, body: &'a Bytes) -> Cow<'a, Bytes> {
        let source = self.source(body);
        metrics::reduced(body.len() - source.len());
        source
    }

    /// Returns the MODIFIED frame for a client that has the object as `before`. `None` if the client sees no difference
    /// except the version: only clients that leave fields out have such states.
    pub fn modified_frame(
        &self,
        before: &ObjectRevision,
        after: &ObjectRevision,
    ) -> Result<Option<Bytes>, TranscodeError> {
        if !self.is_reduced {
            return self.frame(EventType::Modified, after.body()).map(Some);
        }
        let before = before.with_resource_version(after.rv);
        let [before_source, source] = [&before, after.body()].map(|body| self.source(body));
        // Equal sources are written as equal bodies, and other objects may have equal metadata.
        if source == before_source {
            return Ok(None);
        }
        let body = self.body_of(&source)?;
        if let RenderMethod::Metadata(..) = self.state.method
            && self.body_of(&before_source).is_ok_and(|before| before == body)
        {
            return Ok(None);
        }
        metrics::reduced(after.body().len() - source.len());
        Ok(Some(self.state.envelope.frame(EventType::Modified, &body)))
    }

    /// Returns a complete watch frame of an event.
    pub fn frame(&self, event_type: EventType, body: &Bytes) -> Result<Bytes, TranscodeError> {
        Ok(self.state.envelope.frame(event_type, &self.body(body)?))
    }

    /// Returns a whole BOOKMARK frame around a bookmark's body.
    pub fn bookmark(&self, body: &Bytes) -> Result<Bytes, TranscodeError> {
        let body = match &self.state.method {
            RenderMethod::Json(transcoder) => {
                let mut out = Vec::new();
                transcoder.bookmark_json(body, &mut out)?;
                out.into()
            }
            _ => self.body(body)?,
        };
        Ok(self.state.envelope.frame(EventType::Bookmark, &body))
    }

    /// Returns the body of a GET response.
    pub fn object(&self, body: &Bytes) -> Result<Bytes, TranscodeError> {
        Ok(self.state.envelope.object(&self.body(body)?))
    }

    /// Returns the body of a GET response from a rendered body: a printed row has the Table around it.
    pub fn sole_body(&self, body: Bytes, rv: ResourceVersion) -> Bytes {
        let RenderMethod::Print(print) = &self.state.method else { return body };
        let meta = ListMeta { resource_version: rv, ..ListMeta::default() };
        let head = table::head(&meta, print.printer.definitions());
        [head.as_bytes(), &body, table::TAIL.as_bytes()].concat().into()
    }

    /// Returns the pieces of a LIST of `items` items.
    pub fn list(&self, meta: &ListMeta, items: usize) -> ListFrame {
        match (&self.state.method, self.state.representation) {
            (RenderMethod::Print(print), _) => ListFrame::table(meta, print.printer.definitions()),
            (_, Representation::Metadata(FeedEncoding::Json, version)) => ListFrame::metadata(version, meta, items),
            _ => self.state.envelope.list(meta),
        }
    }
}

impl fmt::Debug for ObjectRenderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_verbatim() { "verbatim" } else { "derived" };
        write!(f, "ObjectRenderer {{ {} of {}, {how} }}", self.representation(), self.state.envelope.kind())
    }
}

/// Writes a row's body with its object replaced.
fn put_row(
    body: &[u8],
    out: &mut Vec<u8>,
    write_object: impl FnOnce(&[u8], &mut Vec<u8>) -> Result<(), TranscodeError>,
) -> Result<(), TranscodeError> {
    let start = out.len();
    let object = table::object_of(body)
        .ok_or_else(|| TranscodeError::new(&[], TranscodeRefusal::Malformed("not a Table row")))?;
    out.extend_from_slice(&body[..object.start]);
    write_object(&body[object.clone()], out).inspect_err(|_| out.truncate(start))?;
    out.extend_from_slice(&body[object.end..]);
    Ok(())
}

const PARTIAL_OBJECT_METADATA: &str = "PartialObjectMetadata";
pub(super) const PARTIAL_OBJECT_HEAD: &[u8] = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#;
