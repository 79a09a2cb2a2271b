package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// referenceIndex is the number of the direct watch among the records of a run.
const referenceIndex = -1

// asPlanned reports whether the watch saw all it was to see.
func (w watchRecord) asPlanned() bool { return w.Ended == endedComplete || w.Ended == endedPeriod }

// tracedWatch is a watch of which the hash after each event is known: chain[n] is that
// of the first n events. So it can be told whether a watch that was cut off had seen a
// beginning of the same sequence.
type tracedWatch struct {
	watchRecord
	chain []string
}

// comparison counts how watches relate to a reference.
type comparison struct {
	Equal     int    `json:"equal"`
	Prefix    int    `json:"prefix"`    // cut off, but the same until then
	Different int    `json:"different"` // or complete and not equal
	First     string `json:"first_difference,omitempty"`
}

func (c *comparison) problem() error {
	if c.Different == 0 {
		return nil
	}
	return fmt.Errorf("%d watches differ from the reference; %s", c.Different, c.First)
}

func compareWithReference(records []watchRecord, reference tracedWatch) *comparison {
	c := &comparison{}
	for _, record := range records {
		switch difference := reference.difference(record); {
		case difference != "":
			c.Different++
			if c.First == "" {
				c.First = fmt.Sprintf("watch %d: %s", record.Watch, difference)
			}
		case record.Events == reference.Events:
			c.Equal++
		default:
			c.Prefix++
		}
	}
	return c
}

// difference is empty if the watch saw the same events as the reference or, when one
// of the two was ended from outside, a beginning of them.
func (t tracedWatch) difference(w watchRecord) string {
	switch {
	case w.Events == t.Events && w.SHA256 == t.SHA256:
		return ""
	case w.Events == t.Events:
		return fmt.Sprintf("%d events with other bytes or in another order", w.Events)
	case w.Ended == endedComplete && t.Ended == endedComplete:
		return fmt.Sprintf("complete with %d events (rv %d to %d), the reference with %d (rv %d to %d)",
			w.Events, w.FirstRV, w.LastRV, t.Events, t.FirstRV, t.LastRV)
	case w.Events > t.Events:
		return fmt.Sprintf("%d events, but the reference has only %d", w.Events, t.Events)
	case w.Events == 0:
		return ""
	case w.Events >= len(t.chain):
		return fmt.Sprintf("%d of %d events; only a reference with --verbose can tell whether they are the first ones", w.Events, t.Events)
	case t.chain[w.Events] != w.SHA256:
		return fmt.Sprintf("its %d events are not the first ones of the reference", w.Events)
	default:
		return ""
	}
}

// driveCompareWatches compares the records of two runs: all watches of both must have
// seen the same.
func driveCompareWatches(args []string) error {
	if len(args) != 2 {
		return usagef("usage: drive compare-watches FILE FILE")
	}
	var all []watchRecord
	frames := map[frameWatch][]frameRecord{}
	var reference tracedWatch
	for file, path := range args {
		records, err := readWatchFile(path, file, frames)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("%s has no watches", path)
		}
		for _, record := range records {
			traced := tracedWatch{record, chainOf(frames[frameWatch{file, record.Watch}])}
			if reference.Kind == "" || traced.better(reference) {
				reference = traced
			}
		}
		all = append(all, records...)
	}
	result := struct {
		Kind    string `json:"kind"`
		Watches int    `json:"watches"`
		Events  int    `json:"events"` // of the watch that all others are compared with
		*comparison
	}{"comparison", len(all), reference.Events, compareWithReference(all, reference)}
	return errors.Join(result.problem(), printJSON(result))
}

// better prefers as reference the watch that saw the most, and of these one whose
// beginnings are known.
func (t tracedWatch) better(than tracedWatch) bool {
	if t.Events != than.Events {
		return t.Events > than.Events
	}
	return len(t.chain) > len(than.chain)
}

// frameWatch identifies a watch among the frames of several files.
type frameWatch struct{ file, watch int }

// readWatchFile returns the watches of a file and collects the frames, if it has any.
func readWatchFile(path string, file int, frames map[frameWatch][]frameRecord) ([]watchRecord, error) {
	input, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	defer input.Close()
	var records []watchRecord
	scanner := bufio.NewScanner(input)
	scanner.Buffer(nil, 1<<20)
	for line := 1; scanner.Scan(); line++ {
		var kind struct {
			Kind string `json:"kind"`
		}
		var record watchRecord
		var frame frameRecord
		err := json.Unmarshal(scanner.Bytes(), &kind)
		switch {
		case err != nil:
		case kind.Kind == "watch":
			err = json.Unmarshal(scanner.Bytes(), &record)
			records = append(records, record)
		case kind.Kind == "frame":
			err = json.Unmarshal(scanner.Bytes(), &frame)
			key := frameWatch{file, frame.Watch}
			frames[key] = append(frames[key], frame)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, line, err)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return records, nil
}

// chainOf is the chain of a verbose watch; nil without frames.
func chainOf(frames []frameRecord) []string {
	var chain []string
	for _, frame := range frames {
		for len(chain) <= frame.Seq {
			chain = append(chain, frame.Chain)
		}
	}
	return chain
}
