package compared

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

func run(states ...string) Run {
	all := Run{}
	for at, state := range states {
		if state != "" {
			name := string(rune('a' + at))
			all[name] = Result{Name: name, State: state}
		}
	}
	return all
}

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name            string
		direct, proxied Run
		least           int
		good            bool
	}{
		{"the same ones pass", run(Passed, Passed), run(Passed, Passed), 2, true},
		{"one fails on both sides, and is not missed", run(Passed, "failed"), run(Passed, "timedout"), 1, true},
		{"one fails through the proxy", run(Passed, Passed), run(Passed, "failed"), 1, false},
		{"one passes through the proxy alone", run(Passed, "failed"), run(Passed, Passed), 1, false},
		{"one is not run through the proxy", run(Passed, Passed), run(Passed), 1, false},
		{"one is not run directly", run("", Passed), run(Passed, Passed), 1, false},
		{"nothing is run", run(), run(), 1, false},
		{"nothing passes", run("failed", "failed"), run("failed", "failed"), 1, false},
		{"too few pass", run(Passed, "failed"), run(Passed, "failed"), 2, false},
	} {
		if err := Report(io.Discard, test.direct, test.proxied, test.least); (err == nil) != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestReadTakesAllFilesOfARun(t *testing.T) {
	dir := t.TempDir()
	for name, line := range map[string]string{"results.1": `{"name":"a","state":"passed"}`, "results.2": `{"name":"b","state":"failed"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(filepath.Join(dir, "results.*"))
	if err != nil || len(got) != 2 || got["a"].State != Passed || got["b"].State != "failed" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Read(filepath.Join(dir, "nothing.*")); err == nil {
		t.Error("no files are a run")
	}
}
