// Command h2spec runs h2spec's cases for servers, strict ones too, against a server that
// listens on the loopback address, and prints a line for each: its outcome, its name, and
// what it is about.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

func main() {
	settings := &config.Config{Host: "127.0.0.1", Strict: true, Insecure: true, MaxHeaderLen: 4000}
	flag.IntVar(&settings.Port, "port", 0, "where the server listens")
	flag.StringVar(&settings.Path, "path", "/", "what is asked for: it takes GET and POST, and answers with a body")
	flag.BoolVar(&settings.TLS, "tls", false, "connect over TLS, with whatever certificate the server has")
	flag.DurationVar(&settings.Timeout, "timeout", 10*time.Second, "how long the server has for each answer")
	flag.Parse()
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		// What h2spec prints by itself is for people.
		out := os.Stdout
		os.Stdout = os.Stderr
		group.Test(settings)
		os.Stdout = out
		tell(group)
	}
}

func tell(group *spec.TestGroup) {
	for at, test := range append(group.Tests, group.StrictTests...) {
		fmt.Printf("%s %s/%d %s\n", outcome(test.Result), group.ID(), at+1, test.Desc)
	}
	for _, inner := range group.Groups {
		tell(inner)
	}
}

func outcome(result *spec.TestResult) string {
	switch {
	case result == nil || result.Skipped:
		return "skipped"
	case result.Failed:
		return "failed"
	default:
		return "passed"
	}
}
