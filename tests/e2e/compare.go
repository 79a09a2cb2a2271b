package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// compare prints how every spec went in two runs, and fails unless the same ones passed.
func compare(args []string) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	direct := flags.String("direct", "", "`glob` of the results of the run without a proxy")
	proxied := flags.String("proxy", "", "`glob` of the results of the run through the proxy")
	table := flags.String("markdown", "", "`file` for the list of compared specs, as a table")
	if err := flags.Parse(args); err != nil {
		return err
	}
	a, err := globResults(*direct)
	if err != nil {
		return err
	}
	b, err := globResults(*proxied)
	if err != nil {
		return err
	}
	if *table != "" {
		if err := os.WriteFile(*table, []byte(markdown(a, b)), 0o644); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	return report(a, b)
}

func globResults(pattern string) (map[string]result, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no results %q (%w)", pattern, err)
	}
	return readResults(paths)
}

func report(direct, proxied map[string]result) error {
	var differences []string
	counts := map[string]int{}
	fmt.Printf("%-8s %-8s %6s %6s  %s\n", "direct", "proxy", "s", "s", "spec")
	for _, name := range union(direct, proxied) {
		a, b := direct[name], proxied[name]
		fmt.Printf("%-8s %-8s %6.1f %6.1f  %s\n", state(a), state(b), a.Seconds, b.Seconds, name)
		counts["direct "+state(a)]++
		counts["proxy "+state(b)]++
		if (a.State == passed) != (b.State == passed) {
			differences = append(differences, explain(name, a, b))
		}
	}
	found := "none"
	if len(differences) > 0 {
		found = fmt.Sprint(len(differences))
	}
	fmt.Printf("\n%d passed directly, %d through the proxy, differences: %s\n",
		counts["direct "+passed], counts["proxy "+passed], found)
	if len(differences) > 0 {
		return fmt.Errorf("the proxy makes a difference:\n\n%s", strings.Join(differences, "\n"))
	}
	return nil
}

func union(a, b map[string]result) []string {
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func state(r result) string {
	if r.State == "" {
		return "not run"
	}
	return r.State
}

func explain(name string, a, b result) string {
	reason := a.Reason
	if a.State == passed {
		reason = b.Reason
	}
	return fmt.Sprintf("%s\n  directly %s, through the proxy %s\n%s\n", name, state(a), state(b), reason)
}

// markdown is the list of the specs that passed on both sides, for docs/CLIENTS.md.
func markdown(direct, proxied map[string]result) string {
	var table strings.Builder
	table.WriteString("| Spec |\n|---|\n")
	for _, name := range union(direct, proxied) {
		if direct[name].State == passed && proxied[name].State == passed {
			fmt.Fprintf(&table, "| %s |\n", strings.ReplaceAll(name, "|", "\\|"))
		}
	}
	return table.String()
}
