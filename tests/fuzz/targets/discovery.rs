//! Upstream's version and discovery documents.

use kube_fanout::upstream::{ApiDefinitionKind, DiscoveryDocuments, ResourceOrigin, ServerBuild};
use kube_fanout::wire::{FeedEncoding, JsonLayout, ObjectReader};
use kubeapi::FieldSelector;

use super::choice;

/// An object in which field paths resolve.
const SAMPLE: &str = concat!(
    r#"{"apiVersion":"g/v1","kind":"K","metadata":{"name":"n","namespace":"a","resourceVersion":"5"},"#,
    r#""spec":{"color":"red","size":1.5,"is":true,"none":null,"list":[1,{"x":"y"}],"deep":{"er":{"x":"y"}}}}"#,
);

/// Documents, one per line: `/api`, `/apis`, the definitions, the APIServices, `/version`, and group versions. Custom
/// or aggregated resources never count as the server's own.
pub fn discovery(input: &[u8]) {
    let (first, rest) = choice(input);
    let mut lines = rest.split(|byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (roots, definitions, services, build) = ([next(), next()], next(), next(), next());
    let versions: Vec<_> = lines.collect();
    let documents = DiscoveryDocuments {
        roots,
        versions: &versions,
        definitions: (first & 1 == 0).then_some(definitions),
        services: (first & 2 == 0).then_some(services),
        build,
        protobuf: first & 4 == 0,
    };
    assert!(ServerBuild::parse(build).is_none_or(|known| ServerBuild::parse(build) == Some(known)));
    let _ = documents.named();
    let resources = documents.resources();
    assert_eq!(resources.len(), documents.resources().len(), "the same documents say the same");
    for resource in resources {
        assert!(resource.has_name(&resource.gvr.to_string()), "{resource:?}");
        let is_builtin = resource.origin == ResourceOrigin::BuiltIn;
        assert!(is_builtin || resource.encoding == FeedEncoding::Json, "{resource:?}");
        assert!(resource.origin == ResourceOrigin::Custom || resource.edition.is_none(), "{resource:?}");
        // Field paths come from definitions, and resolve inside objects.
        let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::Custom, resource.fields.clone());
        let object = reader.object(SAMPLE.as_bytes()).expect("an object");
        let Ok(selector) = FieldSelector::parse("metadata.name=n") else { unreachable!("it is one") };
        let matcher = selector.compile(&resource.fields).expect("every resource has names");
        assert!(matcher.matches(&object.key, &object.attributes), "{resource:?}");
    }
    for document in rest.split(|byte| *byte == b'\n') {
        for declaring in ApiDefinitionKind::ALL {
            assert_eq!(declaring.read(document), declaring.read(document));
        }
    }
}
