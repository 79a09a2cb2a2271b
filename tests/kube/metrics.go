package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"regexp"
)

// driveMetrics prints the lines of /metrics that match. It is how tests count what
// reached the apiserver, such as the watches registered there.
func driveMetrics(args []string) error {
	flags := flag.NewFlagSet("metrics", flag.ContinueOnError)
	var target clientFlags
	target.register(flags)
	match := flags.String("match", "", "regular `expression` that a line must match; all lines if empty")
	comments := flags.Bool("comments", false, "also print HELP and TYPE lines")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	expression, err := regexp.Compile(*match)
	if err != nil {
		return usagef("--match: %w", err)
	}
	client, err := target.client()
	if err != nil {
		return err
	}
	ctx, cancel := target.context()
	defer cancel()
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("get /metrics: %w", err)
	}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := scanner.Bytes()
		if (*comments || !bytes.HasPrefix(line, []byte("#"))) && expression.Match(line) {
			fmt.Printf("%s\n", line)
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("read /metrics: %w", err)
	}
	return nil
}
