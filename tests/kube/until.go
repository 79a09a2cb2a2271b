package main

import (
	"context"
	"flag"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// goal says when an observer has seen enough: everything up to a resource version, or
// a period of time. The version may become known only while observing, when a writer
// that runs meanwhile puts the last one into a file.
type goal struct {
	untilRV string
	period  time.Duration
	rv      atomic.Uint64 // 0 while not known
}

func (g *goal) register(flags *flag.FlagSet) {
	flags.StringVar(&g.untilRV, "until-rv", "", "stop once everything up to this resource `version` was seen; @FILE waits for a file that has it")
	flags.DurationVar(&g.period, "for", 0, "stop after this time")
}

func (g *goal) validate() error {
	if (g.untilRV == "") == (g.period == 0) {
		return usagef("exactly one of --until-rv and --for is required")
	}
	if g.untilRV == "" || strings.HasPrefix(g.untilRV, "@") {
		return nil
	}
	rv, err := parseRV(g.untilRV)
	if err != nil || rv == 0 {
		return usagef("--until-rv %q: want a resource version above 0 or @FILE", g.untilRV)
	}
	g.rv.Store(rv)
	return nil
}

// reached reports whether rv is far enough.
func (g *goal) reached(rv uint64) bool {
	until := g.rv.Load()
	return until != 0 && rv >= until
}

// resolve waits until the version is known, if it comes from a file. Anything in the
// file that is not a version yet counts as not written yet.
func (g *goal) resolve(ctx context.Context) {
	path, fromFile := strings.CutPrefix(g.untilRV, "@")
	for fromFile && g.rv.Load() == 0 {
		if data, err := os.ReadFile(path); err == nil {
			if rv, err := parseRV(strings.TrimSpace(string(data))); err == nil {
				g.rv.Store(rv)
				return
			}
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return
		}
	}
}
