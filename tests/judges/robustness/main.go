// Command robustness lets etcd's own validators (go.etcd.io/etcd/tests/v3/robustness) judge a record of
// `fanoutctl verify` whose truth comes from etcd: `make robustness`.
//
//	record ─► history (etcd's watch) ─► view for each selection ─► client reports ─► etcd's validators
//
// A selection is judged as a store of its own, in which an object that no longer matches is deleted. The validators:
//
//   - Filter: each event is in the namespace of its watch.
//   - Ordered, Unique, Reliable, Resumable and Bookmarkable: as etcd defines them.
//   - Atomic: no revision is in two frames. Kubernetes sends each event in a frame of its own, so that events are
//     joined if etcd changed several objects in one revision.
//   - IsCreate: ADDED for a new object, MODIFIED for an existing one.
//   - PrevKV: a deletion has the content of the last object. Kubernetes does not send the previous object of others.
//   - Linearizable (Porcupine): lists, watch-lists and GETs without a version, and the writes. etcd's watch says what
//     was written, and the responses to writes say when.
//   - Serializable: lists, watch-lists and GETs with a version.
//
// Of objects in protobuf, the record has no digest, so that key, version and type are judged. Lease and compaction
// requests of etcd's model do not occur.
//
// Then the program breaks each guarantee in the record and judges again: the validator must notice.
//
// Exits with 1 if a validator says that a guarantee is broken or if it overlooks one that was broken on purpose, with 2
// if there was too little to judge.
package main

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
)

// linearizationMax bounds the search of one selection. It only ends a hang: a minute's record takes seconds.
const linearizationMax = 10 * time.Minute

// counts says how much of a record was judged.
type counts struct {
	watches, resumed, events, bookmarks, linearizable, serializable int
}

func (c *counts) add(other counts) {
	c.watches += other.watches
	c.resumed += other.resumed
	c.events += other.events
	c.bookmarks += other.bookmarks
	c.linearizable += other.linearizable
	c.serializable += other.serializable
}

func main() {
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "Usage: robustness records.jsonl") }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(64)
	}
	isSound, err := judge(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "inconclusive:", err)
		os.Exit(2)
	}
	if !isSound {
		os.Exit(1)
	}
}

// judge prints a line for each selection. It returns false if a guarantee is broken.
func judge(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	r, err := readRecord(file)
	if err != nil {
		return false, err
	}
	h := newHistory(r)
	selections := r.selections()
	log := zap.Must(zap.NewDevelopment(zap.IncreaseLevel(zap.ErrorLevel), zap.AddStacktrace(zap.FatalLevel)))
	var total counts
	isSound, unjudged := true, map[string]int{}
	for _, s := range selections {
		began := time.Now()
		v, err := h.view(s)
		if err != nil {
			return false, err
		}
		reports, counted := v.reports(r.of(s), unjudged)
		result := v.validate(reports, log)
		total.add(counted)
		verdict := "Success"
		if err := result.Error(); err != nil {
			verdict, isSound = err.Error(), false
		}
		if result.Linearization.Error() != nil {
			fmt.Println(unplaced(result.Linearization, reports))
		}
		fmt.Printf("%s: %d watches, %d events, %d linearizable and %d serializable reads in %.1f s: %s\n",
			s, counted.watches, counted.events, counted.linearizable, counted.serializable,
			time.Since(began).Seconds(), verdict)
	}
	fmt.Printf("in all: %d clients, %d faults, %d writes, revisions %d to %d; "+
		"%d watches (%d resumed), %d events, %d bookmarks, %d linearizable and %d serializable reads\n",
		len(r.clients), r.faults, len(r.writes), h.from, h.to,
		total.watches, total.resumed, total.events, total.bookmarks, total.linearizable, total.serializable)
	for _, reason := range slices.Sorted(maps.Keys(unjudged)) {
		fmt.Printf("not judged: %d times %s\n", unjudged[reason], reason)
	}
	if !isSound {
		return false, nil
	}
	if min(total.resumed, total.events, total.bookmarks, total.linearizable, total.serializable) == 0 {
		return false, fmt.Errorf("too little to judge")
	}
	return spoilAll(r, h, selections)
}

// unplaced describes the operation at which the longest linearization ends.
func unplaced(result validate.LinearizationResult, reports []report.ClientReport) string {
	var longest []porcupine.Operation
	for _, partition := range result.Info.PartialLinearizationsOperations() {
		for _, linearization := range partition {
			if len(linearization) > len(longest) {
				longest = linearization
			}
		}
	}
	placed := map[[2]int64]bool{}
	for _, op := range longest {
		placed[[2]int64{int64(op.ClientId), op.Call}] = true
	}
	next := porcupine.Operation{Return: math.MaxInt64}
	for _, client := range reports {
		for _, op := range client.KeyValue {
			if !placed[[2]int64{int64(op.ClientId), op.Call}] && op.Return < next.Return {
				next = op
			}
		}
	}
	if next.Input == nil {
		return "no linearization was found in time"
	}
	return fmt.Sprintf("after %d operations, from %d to %d ns, client %d: %s", len(longest), next.Call, next.Return,
		next.ClientId, result.Model.DescribeOperation(next.Input, next.Output))
}

// selections returns what clients select, with that of all objects first.
func (r *record) selections() []selection {
	used := map[selection]bool{}
	for _, op := range r.operations {
		used[op.selection()] = true
	}
	return slices.SortedFunc(maps.Keys(used), func(a, b selection) int {
		return slices.Compare([]string{a.labels, a.fields}, []string{b.labels, b.fields})
	})
}

func (op *operation) selection() selection {
	return selection{labels: op.values.Get("labelSelector"), fields: op.values.Get("fieldSelector")}
}

// of returns the operations of one selection, in the order of their calls.
func (r *record) of(s selection) (operations []*operation) {
	for _, op := range r.operations {
		if op.selection() == s {
			operations = append(operations, op)
		}
	}
	slices.SortStableFunc(operations, func(a, b *operation) int { return int(a.AtNs - b.AtNs) })
	return operations
}

// reports translates operations into etcd's client reports. What cannot be judged is counted by its reason.
func (v *view) reports(operations []*operation, unjudged map[string]int) ([]report.ClientReport, counts) {
	pages := map[uint64]*operation{}
	for _, op := range operations {
		if op.values.Get("continue") != "" && op.Resumes != nil {
			pages[*op.Resumes] = op
		}
	}
	var counted counts
	var read floors
	byClient := map[int]*report.ClientReport{}
	for _, op := range operations {
		if byClient[op.Client] == nil {
			byClient[op.Client] = &report.ClientReport{ClientID: op.Client}
		}
		if reason := v.translate(op, pages, byClient[op.Client], &read, &counted); reason != "" {
			unjudged[reason]++
		}
	}
	var reports []report.ClientReport
	var reads []porcupine.Operation
	writers := 1
	for _, client := range slices.Sorted(maps.Keys(byClient)) {
		reports, reads = append(reports, *byClient[client]), append(reads, byClient[client].KeyValue...)
		writers = client + 1
	}
	return append(reports, report.ClientReport{ClientID: writers, KeyValue: v.writes(writers, reads)}), counted
}

// translate adds an operation to the report of its client. It returns the reason if it cannot be judged.
func (v *view) translate(
	op *operation, pages map[uint64]*operation, into *report.ClientReport, read *floors, counted *counts,
) string {
	var l *listing
	var reason string
	switch op.Verb {
	case "get":
		got, reason := v.get(op, read.before(v, op.AtNs))
		if got != nil {
			counted.read(got, into, read)
		}
		return reason
	case "list":
		if op.values.Get("continue") != "" {
			return "" // Judged with the first page.
		}
		l, reason = list(op, pages)
	case "watch":
		var watch *model.WatchOperation
		watch, l, reason = v.watch(op)
		if watch != nil {
			counted.watch(op, watch)
			into.Watch = append(into.Watch, *watch)
		}
	}
	if l == nil {
		return reason
	}
	listed, reason := v.read(l, read.before(v, op.AtNs))
	if listed != nil {
		counted.read(listed, into, read)
	}
	return reason
}

func (c *counts) watch(op *operation, watch *model.WatchOperation) {
	c.watches++
	if op.Resumes != nil && watch.Request.Revision > 0 && len(watch.Responses) > 0 {
		c.resumed++
	}
	for _, response := range watch.Responses {
		c.events += len(response.Events)
		if response.IsProgressNotify {
			c.bookmarks++
		}
	}
}

// validate runs etcd's validators.
func (v *view) validate(reports []report.ClientReport, log *zap.Logger) validate.RobustnessResult {
	// Atomic judges several keys of one revision.
	config := validate.Config{ExpectRevisionUnique: false}
	return validate.ValidateAndReturnVisualize(log, config, reports, v.persisted, linearizationMax)
}
