//! Negotiates the form of objects in a response. This server writes only JSON.

use super::kinds::DemoResourceKind;
use super::status::DemoStatus;
use kubeapi::{NegotiatedMediaType, ObjectConversion, SupportedMediaTypes, negotiate, router_accepts};

/// The form of a response: whole objects, a table, or metadata alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ResponseForm {
    Plain,
    Table,
    /// A response in the form `PartialObjectMetadata`, or its list.
    Partial {
        list: bool,
    },
}

impl ResponseForm {
    /// Returns the form for objects of a kind, or the 406 of the layer that refuses first.
    pub(crate) fn negotiated(accept: Option<&str>, kind: &DemoResourceKind, watch: bool) -> Result<Self, DemoStatus> {
        let offers = if kind.custom { SupportedMediaTypes::CUSTOM } else { SupportedMediaTypes::BUILTIN }.in_json();
        let offers = if watch { offers.for_watch() } else { offers };
        if !kind.custom && !router_accepts(accept, offers) {
            let text =
                "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch";
            return Err(DemoStatus::not_acceptable(text, true));
        }
        match negotiate(accept, offers) {
            NegotiatedMediaType::Plain(_) => Ok(Self::Plain),
            NegotiatedMediaType::Converted { target: ObjectConversion::Table, .. } => Ok(Self::Table),
            NegotiatedMediaType::Converted { target: ObjectConversion::PartialObjectMetadata, .. } => {
                Ok(Self::Partial { list: false })
            }
            NegotiatedMediaType::Converted { target: ObjectConversion::PartialObjectMetadataList, .. } => {
                Ok(Self::Partial { list: true })
            }
            NegotiatedMediaType::NotAcceptable | NegotiatedMediaType::NotStreamable => {
                let offered = if watch { "application/json;stream=watch" } else { "application/json" };
                let text = format!("only the following media types are accepted: {offered}");
                Err(DemoStatus::not_acceptable(text, false))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, PODS, by_plural};
    use super::*;

    #[test]
    fn best_supported_accept_clause_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io";
        for (header, form) in [
            ("", ResponseForm::Plain),
            ("*/*", ResponseForm::Plain),
            ("application/vnd.kubernetes.protobuf,application/json", ResponseForm::Plain),
            ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json", ResponseForm::Plain),
            ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", ResponseForm::Table),
            (table, ResponseForm::Table),
            ("application/json;as=Unknown;v=v1;g=meta.k8s.io,application/json", ResponseForm::Plain),
        ] {
            assert_eq!(ResponseForm::negotiated(Some(header), &KINDS[PODS], false).unwrap(), form, "{header}");
        }
    }

    #[test]
    fn unsupported_media_type_returns_406() {
        let widgets = &KINDS[by_plural("widgets").unwrap()];
        let refused = |kind, header| {
            ResponseForm::negotiated(Some(header), kind, false).err().map(|status: DemoStatus| status.code)
        };
        assert_eq!(refused(&KINDS[PODS], "application/vnd.kubernetes.protobuf"), Some(406));
        assert_eq!(refused(&KINDS[PODS], "application/*"), Some(406));
        assert_eq!(refused(widgets, "application/*"), None);
        assert_eq!(refused(widgets, "application/vnd.kubernetes.protobuf"), Some(406));
    }
}
