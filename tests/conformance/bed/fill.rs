use super::Plane;

/// Creates a namespace with `count` objects of a resource, of about `bytes` bytes each.
pub async fn fill(plane: &Plane, what: &str, (resource, count, bytes): (&str, usize, usize), content: &str) -> String {
    let namespace = plane.namespace(what).await;
    let load = plane.drive("load").args(["--namespace", &namespace, "--resource", resource, "--content", content]);
    let load = load.args(["--pods", &count.to_string(), "--size", &bytes.to_string(), "--workers", "4"]);
    load.start().finish().await;
    namespace
}
