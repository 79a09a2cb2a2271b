//! The `size` command: calculates the proxies that a cluster needs in each form.

use std::fmt::Write as _;

use crate::arguments::SizeArguments;
use crate::inspect::{bytes, grouped, lines};
use crate::size::{ClusterLoad, FormSize, ProxyForm};

/// The objects of a node: its pods, itself, and its share of services and endpoints.
const OBJECTS_PER_NODE: u64 = 32;
const NODES_PER_CHANGE: f64 = 50.0;

/// Formats the costs of all forms.
pub fn run(arguments: &SizeArguments) -> String {
    let SizeArguments { nodes, agents, whole, own, resources, objects, object_bytes, changes, replicas, window, json } =
        *arguments;
    let objects = objects.unwrap_or(nodes * OBJECTS_PER_NODE);
    let changes = changes.unwrap_or(nodes as f64 / NODES_PER_CHANGE);
    let window_seconds = window.as_secs_f64();
    let load = ClusterLoad { nodes, agents, whole, own, objects, object_bytes, changes, resources, window_seconds };
    let sizes = load.sizes(replicas);
    if json {
        return serde_json::to_string_pretty(&sizes).expect("numbers and names") + "\n";
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} nodes with {agents} agents each: {} watches of {resources} resources, {} objects of {}, {changes} changes/s of \
         each resource\n",
        grouped(nodes),
        grouped(nodes * agents * (whole + own)),
        grouped(objects),
        bytes(object_bytes),
    );
    let head = [
        "FORM",
        "PROXIES",
        "CORES EACH",
        "MEMORY EACH",
        "TO AGENTS EACH",
        "WATCHES AT APISERVER",
        "ITS CORES",
        "CORES IN ALL",
    ];
    text.push_str(&lines(&head, &sizes.iter().flat_map(rows).collect::<Vec<_>>()));
    text.push_str(
        "\nThe apiserver's cores are those for these watches alone. Measured on two cores of a virtual machine; docs/FORMS.md \
         has the errors.\n",
    );
    text
}

/// Returns the row of a form, and that of its zones.
fn rows(size: &FormSize) -> Vec<Vec<String>> {
    let name = match size.form {
        ProxyForm::Direct => "without proxies",
        ProxyForm::Central => "central",
        ProxyForm::Node => "node",
        ProxyForm::Tree => "node below zones",
    };
    let cores = |cores: f64| format!("{cores:.2}");
    let whole = |number: f64| bytes(to_whole(number));
    let at_apiserver = [grouped(size.apiserver_watches), cores(size.apiserver_cores), cores(size.cores_in_all)];
    let mut rows = match size.form {
        ProxyForm::Direct => {
            let none = || "-".to_owned();
            vec![vec![name.to_owned(), "0".to_owned(), none(), none(), none()]]
        }
        ProxyForm::Central | ProxyForm::Node | ProxyForm::Tree => vec![vec![
            name.to_owned(),
            grouped(size.proxies),
            cores(size.cores),
            whole(size.memory_bytes),
            format!("{}/s", whole(size.sent_bytes_per_second)),
        ]],
    };
    rows[0].extend(at_apiserver);
    if size.zones > 0 {
        rows.push(vec![
            "  zones".to_owned(),
            grouped(size.zones),
            cores(size.zone_cores),
            whole(size.zone_memory_bytes),
            format!("{}/s", whole(size.zone_sent_bytes_per_second)),
        ]);
    }
    rows
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes for people")]
fn to_whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_form_has_a_row_in_text_and_in_json() {
        let mut arguments = SizeArguments {
            nodes: 1_000,
            agents: 2,
            whole: 1,
            own: 1,
            resources: 2,
            objects: None,
            object_bytes: 2_000,
            changes: None,
            replicas: None,
            window: Duration::from_mins(15),
            json: false,
        };
        let text = run(&arguments);
        assert!(
            text.starts_with(
                "1,000 nodes with 2 agents each: 4,000 watches of 2 resources, 32,000 objects of 2.0 KiB, "
            )
        );
        let columns: Vec<Vec<_>> = text.lines().skip(2).map(|line| line.split("  ").collect()).collect();
        for (row, name) in
            ["FORM", "without proxies", "central", "node", "node below zones", "", ""].into_iter().enumerate()
        {
            assert_eq!(columns[row][0], name, "{text}");
        }
        arguments.json = true;
        let sizes: serde_json::Value = serde_json::from_str(&run(&arguments)).expect("JSON");
        let forms: Vec<_> = sizes.as_array().expect("a list").iter().map(|size| size["form"].as_str()).collect();
        assert_eq!(forms, ["direct", "central", "node", "tree"].map(Some));
        assert_eq!(sizes[3]["zones"], 2, "{sizes}");
    }
}
