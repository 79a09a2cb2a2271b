//! Negotiates the form of objects in a response. This server writes only JSON.

use super::kinds::ServedKind;
use super::status::DemoStatus;
use kubeapi::{Conversion, NegotiatedType, SupportedTypes, negotiate, router_accepts};

/// The form of a response: whole objects, a table, or metadata alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Plain,
    Table,
    /// A response in the form `PartialObjectMetadata`, or its list.
    Partial {
        list: bool,
    },
}

impl Form {
    /// Returns the form for objects of a kind, or the 406 of the layer that refuses first.
    pub(crate) fn negotiated(accept: Option<&str>, kind: &ServedKind, watch: bool) -> Result<Self, DemoStatus> {
        let offers = if kind.custom { SupportedTypes::CUSTOM } else { SupportedTypes::BUILTIN }.in_json();
        let offers = if watch { offers.watching() } else { offers };
        if !kind.custom && !router_accepts(accept, offers) {
            let text =
                "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch";
            return Err(DemoStatus::not_acceptable(text, true));
        }
        match negotiate(accept, offers) {
            NegotiatedType::Plain(_) => Ok(Self::Plain),
            NegotiatedType::Converted { target: Conversion::Table, .. } => Ok(Self::Table),
            NegotiatedType::Converted { target: Conversion::PartialObjectMetadata, .. } => {
                Ok(Self::Partial { list: false })
            }
            NegotiatedType::Converted { target: Conversion::PartialObjectMetadataList, .. } => {
                Ok(Self::Partial { list: true })
            }
            NegotiatedType::NotAcceptable | NegotiatedType::NotStreamable => {
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
            ("", Form::Plain),
            ("*/*", Form::Plain),
            ("application/vnd.kubernetes.protobuf,application/json", Form::Plain),
            ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json", Form::Plain),
            ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", Form::Table),
            (table, Form::Table),
            ("application/json;as=Unknown;v=v1;g=meta.k8s.io,application/json", Form::Plain),
        ] {
            assert_eq!(Form::negotiated(Some(header), &KINDS[PODS], false).unwrap(), form, "{header}");
        }
    }

    #[test]
    fn unsupported_media_type_returns_406() {
        let widgets = &KINDS[by_plural("widgets").unwrap()];
        let refused =
            |kind, header| Form::negotiated(Some(header), kind, false).err().map(|status: DemoStatus| status.code);
        assert_eq!(refused(&KINDS[PODS], "application/vnd.kubernetes.protobuf"), Some(406));
        assert_eq!(refused(&KINDS[PODS], "application/*"), Some(406));
        assert_eq!(refused(widgets, "application/*"), None);
        assert_eq!(refused(widgets, "application/vnd.kubernetes.protobuf"), Some(406));
    }
}
