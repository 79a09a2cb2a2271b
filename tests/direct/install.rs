//! The commands of documents that need no control plane, word for word except for paths and addresses of this machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::direct::{Dir, Shell, blocks, commands as commands_of, eventually, has, repository, with};
use crate::process::{Process, kubeconfig, run};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Replacement for systemctl on machines where systemd is not the first process. It treats the home folder as the whole
/// machine. systemd's own tools parse the units, and one of them passes the socket.
const SYSTEMCTL: &str = r#"
case $1 in
daemon-reload)
  said=$(systemd-analyze verify --root="$HOME" kube-fanout.service kube-fanout.socket 2>&1) && [ -z "$said" ] ||
    { echo "systemd-analyze verify: $said" >&2; exit 1; } ;;
enable)
  shift 2
  PATH=$ITS_PATH systemctl --quiet --root="$HOME" enable "$@"
  units=$HOME/etc/systemd/system
  socket=$(sed -n 's|^ListenStream=/run/kube-fanout|run|p' "$units/kube-fanout.socket")
  program=$(sed -n "s|^ExecStart=|$HOME|p" "$units/kube-fanout.service" | sed "s| /etc/| $HOME/etc/|")
  # shellcheck disable=SC2086
  timeout 600 systemd-socket-activate --listen="$HOME/$socket" $program --admin 127.0.0.1:0 >"$HOME/log" 2>&1 &
  echo $! >"$HOME/pid"
  until [ -S "$HOME/$socket" ]; do sleep 0.02; done ;;
*) exit 64 ;;
esac"#;

/// A process that a block has started, whose id it wrote to a file.
struct Started(std::path::PathBuf);

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(id) = fs::read_to_string(&self.0) {
            let _ = Command::new("kill").arg(id.trim()).status();
        }
    }
}

/// An archive as deploy/release.sh makes it, with the binary under test. The checksums also list an archive that does
/// not exist. The binaries are copied: tar fails if another run changes the number of links of a file that it reads.
fn release(shell: &Shell, name: &str) {
    let folder = Path::new(env!("CARGO_BIN_EXE_kube-fanout")).parent().expect("a folder").display();
    shell.run(&format!("mkdir -p '{name}/completions'"));
    for program in ["kube-fanout", "fanoutctl"] {
        shell.run(&format!(
            "cp '{folder}/{program}' '{name}/{program}'
            cd '{name}'
            ./{program} man man/man1
            ./{program} completions bash > completions/{program}.bash
            ./{program} completions zsh > completions/_{program}
            ./{program} completions fish > completions/{program}.fish"
        ));
    }
    let library = repository().join("deploy/static.sh");
    let pack = format!("source '{}'; archive . '{name}' | gzip --fast > '{name}.tar.gz'", library.display());
    let packed = shell.command("exec bash -euo pipefail -c \"$PACK\"").env("PACK", pack).status();
    assert!(packed.expect("bash").success());
    let missing = format!("{}  kube-fanout-{VERSION}-aarch64-unknown-linux-musl.tar.gz", "0".repeat(64));
    shell.run(&format!("{{ sha256sum '{name}.tar.gz'; echo '{missing}'; }} > SHA256SUMS; rm -r '{name}'"));
}

#[test]
fn archive_install_commands_verify_and_install_files() {
    let dir = Dir::new();
    let shell = Shell::new(dir.join("home"));
    let name = format!("kube-fanout-{VERSION}-x86_64-unknown-linux-musl");
    release(&shell, &name);
    fs::create_dir_all(shell.home.join("usr/local/bin")).expect("a folder");
    let usr = format!("{}/usr/local", shell.home.display());
    let [block] = blocks("docs/INSTALL.md", "archive_install_commands_verify_and_install_files");
    let block = with(&block, &[("/usr/local", &usr)]);
    let stdout = shell.run(&block);
    assert_eq!(stdout, format!("{name}.tar.gz: OK\nkube-fanout {VERSION}\n"));
    for file in [
        "share/man/man1/kube-fanout-serve.1",
        "share/bash-completion/completions/kube-fanout",
        "share/zsh/site-functions/_kube-fanout",
        "share/fish/vendor_completions.d/kube-fanout.fish",
        "share/man/man1/fanoutctl-try.1",
        "share/bash-completion/completions/fanoutctl",
    ] {
        let text = fs::read_to_string(Path::new(&usr).join(file)).expect(file);
        assert!(text.contains("fanout"), "{file}");
    }
    let plugin = shell.output("usr/local/bin/kubectl-fanout status --address http://127.0.0.1:1");
    assert_eq!(plugin.status.code(), Some(2), "no proxy responds: {plugin:?}");
    let sums = fs::read_to_string(shell.home.join("SHA256SUMS")).expect("the sums");
    shell.file("SHA256SUMS", &sums.replacen(|c: char| c != '0', "0", 1));
    assert!(!shell.output(&block).status.success(), "another content is not unpacked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_install_commands_serve_on_unix_socket() {
    if !has(&["systemctl", "systemd-analyze", "systemd-sysusers", "systemd-socket-activate", "curl"]) {
        return;
    }
    let (dir, up) = (Dir::new(), demo::upstream().pods(3).run().await);
    let shell = Shell::new(dir.join("home")).set("ITS_PATH", &std::env::var("PATH").expect("a path"));
    let _started = Started(shell.home.join("pid"));
    let home = shell.home.display().to_string();
    for folder in ["usr/local/bin", "usr/lib/sysusers.d", "etc/systemd/system", "run"] {
        fs::create_dir_all(shell.home.join(folder)).expect("a folder");
    }
    shell.link("deploy", &repository().join("deploy"));
    shell.link("kube-fanout", Path::new(env!("CARGO_BIN_EXE_kube-fanout")));
    shell.run("mkdir -p usr/lib/systemd && cp -r /usr/lib/systemd/system usr/lib/systemd/");
    let sample = fs::read_to_string(repository().join("config/edge.yaml")).expect("the sample");
    let (etc, run) = (format!("{home}/etc/kube-fanout/"), format!("{home}/run/"));
    shell.file("config/edge.yaml", &with(&sample, &[("/etc/kube-fanout/", &etc), ("/run/kube-fanout/", &run)]));
    fs::copy(kubeconfig(&dir, &up.url(), ""), shell.home.join("kubeconfig")).expect("a copy");
    shell.program("systemctl", SYSTEMCTL);
    let [block] = blocks("docs/INSTALL.md", "systemd_install_commands_serve_on_unix_socket");
    let table = [
        // The group is created in the folder only.
        (" -g kube-fanout", ""),
        ("systemd-sysusers\n", "systemd-sysusers --root=\"$HOME\"\n"),
        (" /usr/", " usr/"),
        (" /etc/", " etc/"),
        (" /run/kube-fanout/", " run/"),
    ];
    let commands = with(&block, &table);
    let stdout = tokio::task::spawn_blocking(move || shell.run(&commands)).await.expect("no panic");
    assert!(stdout.contains("kube-fanout-served: cache") && stdout.contains("\"kind\":\"PodList\""), "{stdout}");
    let users = fs::read_to_string(Path::new(&home).join("etc/passwd")).expect("the user was made");
    assert!(users.starts_with("kube-fanout:"), "{users}");
    for link in ["multi-user.target.wants/kube-fanout.service", "sockets.target.wants/kube-fanout.socket"] {
        assert!(Path::new(&home).join("etc/systemd/system").join(link).is_symlink(), "{link}");
    }
    eventually("its feeds are filled", || async { up.counts().watches_open.of("services") == 1 }).await;
}

/// kube-fanout's own commands in the blocks of a document.
fn own_commands(document: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(document)).expect("the document is there");
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let commands = blocks.flat_map(commands_of);
    let ours = commands.filter_map(|command| {
        let names = [
            ("kubectl fanout ", "fanoutctl fanout "),
            ("cargo run --release -- ", "fanoutctl "),
            ("cargo demo ", "fanoutctl demo "),
            ("fanoutctl ", "fanoutctl "),
            ("kube-fanout ", "kube-fanout "),
        ];
        let (name, ours) = names.into_iter().find(|(name, _)| command.starts_with(name))?;
        Some(format!("{ours}{}", &command[name.len()..]))
    });
    ours.collect()
}

/// This includes commands that no test runs to their end.
#[test]
fn documented_command_flags_exist() {
    let dir = Dir::new();
    let shell = Shell::in_checkout(dir.join("home")).set("NODE_NAME", "n1");
    let mut count = 0;
    let tools = ["docs/tools/BENCH", "docs/tools/VERIFY"];
    for document in
        ["README", "docs/FORMS", "docs/GUIDES", "docs/INSTALL", "docs/OPERATING", "docs/QUICKSTART", "docs/RUNBOOK"]
            .into_iter()
            .chain(tools)
    {
        for command in own_commands(&format!("{document}.md")) {
            let stdout = shell.run(&format!("{command} --help"));
            assert!(stdout.contains("Usage: "), "{command}: {stdout}");
            count += 1;
        }
    }
    assert!(count > 15, "the commands were not found: {count}");
    let wrong = shell.output("kube-fanout serve --no-such-flag --help");
    assert_eq!(wrong.status.code(), Some(64), "--help does not hide the error");
}

#[test]
fn documented_configurations_are_valid() {
    let dir = Dir::new();
    let [tree] = blocks("docs/FORMS.md", "documented_configurations_are_valid");
    let [config, scraped] = blocks("docs/CONFIG.md", "documented_configurations_are_valid");
    let credentials = kubeconfig(&dir, "http://127.0.0.1:1", "").display().to_string();
    let config = with(&config, &[("/etc/kube-fanout/kubeconfig", &credentials)]);
    for settings in [tree, config, scraped] {
        let file = dir.file("config.yaml", &settings).display().to_string();
        let checked = run(&["config", "check", "--config", &file, "--kubeconfig", &credentials]);
        assert_eq!(checked.code, Some(0), "{settings}: {}", checked.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runbook_queries_match_exposed_data() {
    if !has(&["curl", "jq"]) {
        return;
    }
    let (dir, up) = (Dir::new(), demo::upstream().pods(3).run().await);
    let config = dir.file("config.yaml", "preload: [pods]\n").display().to_string();
    let process = Process::serve(&dir, &up.url(), &["--config", &config]).await;
    eventually("it is ready", || async { process.is_ready().await }).await;
    up.faults().reset_watches();
    let failed = || async { process.metrics().await.contains("kube_fanout_upstream_failures_total{") };
    eventually("a failure is counted", failed).await;
    let again = || async { !process.admin("/debug/feeds").await.contains("stale\"") };
    eventually("its streams are back", again).await;
    let [block] = blocks("docs/RUNBOOK.md", "runbook_queries_match_exposed_data");
    let block = with(&block, &[("A=http://127.0.0.1:9090", &format!("A={}", process.admin_url()))]);
    let requests: Vec<_> = block.lines().filter(|line| !line.starts_with("kubectl ")).collect();
    assert_eq!(requests.len() + 2, block.lines().count(), "the kubelet forwards the port, and has the log");
    let shell = Shell::new(dir.join("home"));
    let stdout = tokio::task::spawn_blocking({
        let commands = requests.join("\n");
        move || shell.run(&commands)
    });
    let stdout = stdout.await.expect("no panic");
    for part in ["pods.v1\t\tlive\t3\t", "kube_fanout_upstream_failures_total{", "\"lastError\":"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(!stdout.contains("\tnull") && !stdout.contains("\t\t\t"), "a field that is not there: {stdout}");
}
