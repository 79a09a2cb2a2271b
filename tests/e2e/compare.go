package main

import (
	"flag"
	"fmt"
	"os"

	"kube-e2e/compared"
)

// compare prints how every spec went in two runs, and fails unless the same ones passed, and enough of them.
func compare(args []string) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	direct := flags.String("direct", "", "`glob` of the results of the run without a proxy")
	proxied := flags.String("proxy", "", "`glob` of the results of the run through the proxy")
	table := flags.String("markdown", "", "`file` for the list of compared specs, as a table")
	least := flags.Int("least", 1, "as many `specs` have to pass on both sides")
	if err := flags.Parse(args); err != nil {
		return err
	}
	a, err := compared.Read(*direct)
	if err != nil {
		return err
	}
	b, err := compared.Read(*proxied)
	if err != nil {
		return err
	}
	if *table != "" {
		if err := os.WriteFile(*table, []byte(compared.Markdown(a, b)), 0o644); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	return compared.Report(os.Stdout, a, b, *least)
}
