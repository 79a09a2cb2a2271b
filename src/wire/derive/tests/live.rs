//! What a real kube-apiserver has answered, if `KUBE_CAPTURE` names a directory that tests/facts/capture.py has filled:
//! every resource in both encodings at one resource version.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::{MetadataRenderer, Refused, Transcoder};
use super::{difference, report};
use crate::kube::{EventType, MetaVersion, ResourceVersion};
use crate::wire::proto_document::{Document, split_event};
use crate::wire::protobuf::{Fields, MAGIC};
use crate::wire::{Encoding, Envelope, JsonLayout, ListFrame, ListMeta};

const MINOR: u32 = 37;
const PARTIAL: &str = "PartialObjectMetadata";
const ITEMS: &[u8] = br#","items":"#;

/// One resource's files.
struct Capture {
    stem: PathBuf,
    api_version: String,
    kind: String,
    protobuf: bool,
}

#[test]
fn answers_of_a_real_server_are_derived_to_the_byte() {
    let Some(directory) = std::env::var_os("KUBE_CAPTURE") else { return };
    let mut counts = BTreeMap::<&str, (usize, usize)>::new();
    let mut failures = Vec::new();
    let mut judge = |what: &'static str, name: &Path, got: &[u8], want: &[u8]| {
        let (exact, all) = counts.entry(what).or_default();
        *all += 1;
        if got == want {
            *exact += 1;
        } else {
            failures.push(format!("{what} {}: {}", name.display(), difference(got, want)));
        }
    };
    let mut refusals = Vec::new();
    for capture in captures(Path::new(&directory)) {
        capture.lists(&mut judge, &mut refusals);
        capture.frames(&mut judge, &mut refusals);
        for version in [MetaVersion::V1, MetaVersion::V1beta1] {
            refusals.extend(capture.partial_lists(version, &mut judge).err().map(|refused| capture.named(&refused)));
        }
        refusals.extend(capture.partial_frames(&mut judge).err().map(|refused| capture.named(&refused)));
    }
    report(&format!("{counts:#?}\nrefused: {refusals:#?}"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

impl Capture {
    fn read(&self, suffix: &str) -> Vec<u8> {
        let mut name = self.stem.clone().into_os_string();
        name.push(suffix);
        fs::read(name).unwrap_or_default()
    }

    fn named(&self, refused: &Refused) -> String {
        format!("{}: {refused}", self.stem.display())
    }

    fn transcoder(&self) -> Option<Transcoder> {
        Transcoder::for_server(MINOR, &self.api_version, &self.kind).filter(|_| self.protobuf)
    }

    /// The whole LIST, and each of its items' metadata from both encodings.
    fn lists(&self, judge: &mut impl FnMut(&'static str, &Path, &[u8], &[u8]), refusals: &mut Vec<String>) {
        let Some(transcoder) = self.transcoder() else { return };
        let (json, document) = (self.read(".json"), self.read(".pb"));
        let items_at = find(&json, ITEMS) + ITEMS.len();
        let mut got = json[..items_at].to_vec();
        let mut separator = b'[';
        for body in items(&document, 2) {
            got.extend_from_slice(&[separator, b'{']);
            separator = b',';
            if let Err(refused) = transcoder.json(&body, &mut got) {
                refusals.push(self.named(&refused));
                return;
            }
            judge("bodies", &self.stem, &[], &[]);
        }
        got.extend_from_slice(if separator == b'[' { b"[]}\n" } else { b"]}\n" });
        judge("LISTs", &self.stem, &got, &json);
    }

    fn frames(&self, judge: &mut impl FnMut(&'static str, &Path, &[u8], &[u8]), refusals: &mut Vec<String>) {
        let Some(transcoder) = self.transcoder() else { return };
        let envelope = Envelope::new(Encoding::Json, &self.api_version, &self.kind, JsonLayout::BuiltIn);
        let json = self.read(".watch.json");
        for (frame, want) in frames(&self.read(".watch.pb")).iter().zip(json.split_inclusive(|byte| *byte == b'\n')) {
            let (event_type, document) = split_event(frame).unwrap();
            let mut body = Vec::new();
            match transcoder.json(Document::split(document).unwrap().raw, &mut body) {
                Ok(()) => compare_frames(judge, &self.stem, event_type, &envelope.frame(event_type, &body), want),
                Err(refused) => refusals.push(self.named(&refused)),
            }
        }
    }

    fn partial_lists(
        &self,
        version: MetaVersion,
        judge: &mut impl FnMut(&'static str, &Path, &[u8], &[u8]),
    ) -> Result<(), Refused> {
        let metadata = MetadataRenderer::for_server(MINOR, &self.api_version, &self.kind);
        // In v1beta1 it is the items that are first: meta/v1beta1/generated.proto.
        let (number, name) = match version {
            MetaVersion::V1 => (2, "v1"),
            MetaVersion::V1beta1 => (1, "v1beta1"),
        };
        let want_json = self.read(&format!(".pom{name}.json"));
        let want = items(&self.read(&format!(".pom{name}.pb")), number);
        if self.protobuf {
            for (body, want) in items(&self.read(".pb"), 2).iter().zip(&want) {
                judge("partial protobuf of protobuf", &self.stem, &metadata.protobuf(body)?, want);
            }
            let bodies = items(&self.read(".pb"), 2);
            let put = |body: &Bytes, out: &mut Vec<u8>| metadata.json(body, out);
            judge(
                "partial JSON of protobuf",
                &self.stem,
                &partial_list(version, &bodies, put, &want_json)?,
                &want_json,
            );
        }
        let bodies = json_items(&self.read(".json"));
        for (body, want) in bodies.iter().zip(&want) {
            judge("partial protobuf of JSON", &self.stem, &metadata.protobuf_from_json(body)?, want);
        }
        let put = |body: &Bytes, out: &mut Vec<u8>| metadata.json_from_json(body, out);
        judge("partial JSON of JSON", &self.stem, &partial_list(version, &bodies, put, &want_json)?, &want_json);
        Ok(())
    }

    fn partial_frames(&self, judge: &mut impl FnMut(&'static str, &Path, &[u8], &[u8])) -> Result<(), Refused> {
        let metadata = MetadataRenderer::for_server(MINOR, &self.api_version, &self.kind);
        let envelope = Envelope::new(Encoding::Json, "meta.k8s.io/v1", PARTIAL, JsonLayout::BuiltIn);
        let protobuf = Envelope::new(Encoding::Protobuf, "meta.k8s.io/v1", PARTIAL, JsonLayout::BuiltIn);
        let (json, partial) = (self.read(".pomwatch.json"), self.read(".pomwatch.pb"));
        for (frame, want) in frames(&self.read(".watch.pb")).iter().zip(json.split_inclusive(|byte| *byte == b'\n')) {
            let (event_type, document) = split_event(frame).unwrap();
            let mut body = Vec::new();
            metadata.json(Document::split(document).unwrap().raw, &mut body)?;
            compare_frames(judge, &self.stem, event_type, &envelope.frame(event_type, &body), want);
        }
        for (frame, want) in frames(&self.read(".watch.pb")).iter().zip(frames(&partial)) {
            let (event_type, document) = split_event(frame).unwrap();
            let body = metadata.protobuf(&Bytes::copy_from_slice(Document::split(document).unwrap().raw))?;
            if event_type != EventType::Bookmark {
                judge("partial protobuf frames", &self.stem, &protobuf.frame(event_type, &body), want);
            }
        }
        let text = self.read(".watch.json");
        for (line, want) in text.split_inclusive(|byte| *byte == b'\n').zip(json.split_inclusive(|byte| *byte == b'\n'))
        {
            if self.protobuf || line.starts_with(br#"{"type":"BOOKMARK""#) {
                continue;
            }
            let object = &line[find(line, br#""object":"#) + 9..line.len() - 2];
            let mut body = Vec::new();
            metadata.json_from_json(object, &mut body)?;
            judge("partial frames of custom resources", &self.stem, &envelope.frame(EventType::Added, &body), want);
        }
        Ok(())
    }
}

fn partial_list(
    version: MetaVersion,
    bodies: &[Bytes],
    put: impl Fn(&Bytes, &mut Vec<u8>) -> Result<(), Refused>,
    want: &[u8],
) -> Result<Vec<u8>, Refused> {
    let meta = ListMeta { resource_version: ResourceVersion(1), continue_token: String::new(), remaining: None };
    let frame = ListFrame::metadata(version, &meta, bodies.len());
    let head = frame.head(bodies.len(), 0);
    let mut got = want[..find(want, ITEMS)].to_vec();
    got.extend_from_slice(&head[find(&head, ITEMS)..]);
    for (index, body) in bodies.iter().enumerate() {
        frame.put_item_head(index == 0, 0, &mut got);
        put(body, &mut got)?;
    }
    got.extend_from_slice(&frame.tail());
    Ok(got)
}

/// The two encodings' bookmarks are of two requests: all but the version is compared.
fn compare_frames(
    judge: &mut impl FnMut(&'static str, &Path, &[u8], &[u8]),
    name: &Path,
    event_type: EventType,
    got: &[u8],
    want: &[u8],
) {
    if event_type == EventType::Bookmark {
        let digits =
            |frame: &[u8]| -> Vec<u8> { frame.iter().filter(|byte| !byte.is_ascii_digit()).copied().collect() };
        judge("bookmarks", name, &digits(got), &digits(want));
    } else {
        judge("frames", name, got, want);
    }
}

fn captures(directory: &Path) -> Vec<Capture> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    // Made anew for every request, in any order.
    let files = files.filter(|file| !file.ends_with("api_v1_componentstatuses.meta"));
    let mut captures: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "meta"))
        .map(|file| {
            let meta: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let text = |key: &str| meta[key].as_str().unwrap().to_owned();
            let protobuf = meta["pb"].as_bool().unwrap();
            Capture { stem: file.with_extension(""), api_version: text("apiVersion"), kind: text("kind"), protobuf }
        })
        .collect();
    captures.sort_by(|a, b| a.stem.cmp(&b.stem));
    captures
}

/// The bodies of a protobuf list, whose items have this number.
fn items(document: &[u8], number: u32) -> Vec<Bytes> {
    assert!(document.starts_with(MAGIC));
    let mut fields = Fields::new(Document::split(document).unwrap().raw);
    let mut items = Vec::new();
    while let Some(field) = fields.next().unwrap() {
        if field.number == number {
            items.push(Bytes::copy_from_slice(field.bytes().unwrap()));
        }
    }
    items
}

/// The objects of a JSON list.
fn json_items(list: &[u8]) -> Vec<Bytes> {
    #[derive(serde::Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        items: Vec<&'a serde_json::value::RawValue>,
    }
    let List { items } = serde_json::from_slice(list).unwrap();
    items.into_iter().map(|item| Bytes::copy_from_slice(item.get().as_bytes())).collect()
}

/// A protobuf watch stream's frames, each with its length.
fn frames(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some(prefix) = stream.first_chunk() {
        let (frame, rest) = stream.split_at(4 + u32::from_be_bytes(*prefix) as usize);
        frames.push(frame);
        stream = rest;
    }
    frames
}

fn find(text: &[u8], what: &[u8]) -> usize {
    memchr::memmem::find(text, what).unwrap()
}
