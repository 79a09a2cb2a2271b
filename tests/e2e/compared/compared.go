// Package compared says how the specs of two runs went, and whether that shows anything.
package compared

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Result is how one spec went.
type Result struct {
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Reason  string  `json:"reason,omitempty"`
}

// Passed is the state of a spec that passed.
const Passed = "passed"

// Run is how the specs of one run went, by name.
type Run map[string]Result

// Read reads the files of one run, as many as it had processes.
func Read(pattern string) (Run, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no results %q (%w)", pattern, err)
	}
	all := Run{}
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("open results: %w", err)
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			var one Result
			if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			all[one.Name] = one
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return all, nil
}

// Report prints how every spec went in both runs. It fails unless the same ones passed, and
// no fewer than least: two runs in which nothing passes are alike too.
func Report(out io.Writer, direct, proxied Run, least int) error {
	var differences []string
	counts, both := map[string]int{}, 0
	fmt.Fprintf(out, "%-8s %-8s %6s %6s  %s\n", "direct", "proxy", "s", "s", "spec")
	for _, name := range union(direct, proxied) {
		a, b := direct[name], proxied[name]
		fmt.Fprintf(out, "%-8s %-8s %6.1f %6.1f  %s\n", state(a), state(b), a.Seconds, b.Seconds, name)
		counts["direct "+state(a)]++
		counts["proxy "+state(b)]++
		switch {
		case a.State == Passed && b.State == Passed:
			both++
		case a.State == Passed || b.State == Passed:
			differences = append(differences, explain(name, a, b))
		}
	}
	found := "none"
	if len(differences) > 0 {
		found = fmt.Sprint(len(differences))
	}
	fmt.Fprintf(out, "\n%d passed directly, %d through the proxy, differences: %s\n",
		counts["direct "+Passed], counts["proxy "+Passed], found)
	if len(differences) > 0 {
		return fmt.Errorf("the proxy makes a difference:\n\n%s", strings.Join(differences, "\n"))
	}
	if both < least {
		return fmt.Errorf("%d specs passed on both sides, which shows little: at least %d have to", both, least)
	}
	return nil
}

func union(a, b Run) []string {
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func state(r Result) string {
	if r.State == "" {
		return "not run"
	}
	return r.State
}

func explain(name string, a, b Result) string {
	reason := a.Reason
	if a.State == Passed {
		reason = b.Reason
	}
	return fmt.Sprintf("%s\n  directly %s, through the proxy %s\n%s\n", name, state(a), state(b), reason)
}

// Markdown is the list of the specs that passed on both sides, for docs/dev/COMPARED.md.
func Markdown(direct, proxied Run) string {
	var table strings.Builder
	table.WriteString("| Spec |\n|---|\n")
	for _, name := range union(direct, proxied) {
		if direct[name].State == Passed && proxied[name].State == Passed {
			fmt.Fprintf(&table, "| %s |\n", strings.ReplaceAll(name, "|", "\\|"))
		}
	}
	return table.String()
}
