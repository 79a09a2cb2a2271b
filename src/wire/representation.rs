use std::fmt;

use super::Form;
use crate::kube::MetaVersion;

/// What an answer's objects are written as, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Representation {
    /// The objects themselves.
    Object(Form),
    /// `PartialObjectMetadata`: what metadata-only clients ask for.
    Metadata(Form, MetaVersion),
}

impl Representation {
    /// Every one, in the order of [`index`](Self::index).
    pub const ALL: [Self; 6] = [
        Self::Object(Form::Json),
        Self::Object(Form::Protobuf),
        Self::Metadata(Form::Json, MetaVersion::V1),
        Self::Metadata(Form::Protobuf, MetaVersion::V1),
        Self::Metadata(Form::Json, MetaVersion::V1beta1),
        Self::Metadata(Form::Protobuf, MetaVersion::V1beta1),
    ];

    /// The encoding.
    pub fn form(self) -> Form {
        match self {
            Self::Object(form) | Self::Metadata(form, _) => form,
        }
    }

    /// Its place in [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        let form = match self.form() {
            Form::Json => 0,
            Form::Protobuf => 1,
        };
        match self {
            Self::Object(_) => form,
            Self::Metadata(_, MetaVersion::V1) => 2 + form,
            Self::Metadata(_, MetaVersion::V1beta1) => 4 + form,
        }
    }

    /// For logs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Object(form) => form.as_str(),
            Self::Metadata(Form::Json, MetaVersion::V1) => "metadata_json",
            Self::Metadata(Form::Protobuf, MetaVersion::V1) => "metadata_protobuf",
            Self::Metadata(Form::Json, MetaVersion::V1beta1) => "metadata_v1beta1_json",
            Self::Metadata(Form::Protobuf, MetaVersion::V1beta1) => "metadata_v1beta1_protobuf",
        }
    }

    /// The `Accept` with which upstream writes it itself: of its lists, or of its objects.
    pub fn accept(self, list: bool) -> String {
        let media_type = self.form().media_type();
        match self {
            Self::Object(_) => media_type.to_owned(),
            Self::Metadata(_, version) => {
                let list = if list { "List" } else { "" };
                format!("{media_type};as=PartialObjectMetadata{list};g=meta.k8s.io;v={}", version.as_str())
            }
        }
    }
}

impl fmt::Display for Representation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_one_has_its_place() {
        for (index, representation) in Representation::ALL.into_iter().enumerate() {
            assert_eq!(representation.index(), index, "{representation}");
        }
    }

    #[test]
    fn metadata_is_asked_for_by_kind_group_and_version() {
        let json = Representation::Metadata(Form::Json, MetaVersion::V1beta1);
        assert_eq!(json.accept(true), "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1");
        let protobuf = Representation::Metadata(Form::Protobuf, MetaVersion::V1);
        assert_eq!(
            protobuf.accept(false),
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        );
        assert_eq!(Representation::Object(Form::Json).accept(true), "application/json");
    }
}
