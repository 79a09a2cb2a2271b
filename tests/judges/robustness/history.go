package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// root begins every key of the recorded resource.
	root = "/registry/"
	// otherKey is written in each revision that changed something else in etcd.
	otherKey = "/other"
)

// history is what etcd's own watch delivered: every change of the resource up to the revision `to`, and the state at
// `from`.
type history struct {
	from, to int64
	// byRevision has the changes of each revision.
	byRevision map[int64][]change
	// called and returned bound the time at which each revision was committed, by revision.
	called, returned []int64
	// impossible are acknowledged writes that etcd does not have.
	impossible []write
}

func newHistory(r *record) *history {
	last := r.known[len(r.known)-1]
	h := &history{from: last.From, to: last.To, byRevision: map[int64][]change{}}
	for _, c := range r.changes {
		if c.Version <= h.to {
			h.byRevision[c.Version] = append(h.byRevision[c.Version], c)
		}
	}
	h.bound(r)
	return h
}

// bound derives when each revision was committed: after the call of a write that made it or an earlier one, before the
// response to a write that made it or a later one, and before etcd's watch delivered it or a later one.
func (h *history) bound(r *record) {
	h.called, h.returned = make([]int64, h.to+2), make([]int64, h.to+2)
	for revision := range h.returned {
		h.returned[revision] = math.MaxInt64
	}
	byKey := map[string][]change{}
	for revision := int64(1); revision <= h.to; revision++ {
		for _, c := range h.byRevision[revision] {
			byKey[c.Key] = append(byKey[c.Key], c)
			h.returned[revision] = min(h.returned[revision], c.AtNs)
		}
	}
	for _, k := range r.known {
		if k.To <= h.to {
			h.returned[k.To] = min(h.returned[k.To], k.AtNs)
		}
	}
	for _, w := range r.writes {
		if w.Code < 200 || w.Code > 299 || w.Version == 0 || w.Version > h.to {
			continue
		}
		made := madeBy(w, byKey[w.Key])
		if made == nil {
			h.impossible = append(h.impossible, w)
			continue
		}
		h.called[made.Version] = max(h.called[made.Version], w.CallNs)
		h.returned[made.Version] = min(h.returned[made.Version], w.ReturnNs)
	}
	for revision := int64(1); revision <= h.to; revision++ {
		h.called[revision] = max(h.called[revision], h.called[revision-1])
	}
	for revision := h.to; revision > 0; revision-- {
		h.returned[revision] = min(h.returned[revision], h.returned[revision+1])
	}
}

// madeBy returns the change that a successful write made. The response to a deletion has a version that the object had
// before.
func madeBy(w write, changes []change) *change {
	isDeletion := w.Verb == "delete"
	for at := range changes {
		c := &changes[at]
		if isDeletion == (c.Type == "DELETED") && (c.Version == w.Version || isDeletion && c.Version > w.Version) {
			return c
		}
	}
	return nil
}

// selection is what a client selects by labels and fields. The namespace is not part of it, because it is a prefix.
type selection struct {
	labels, fields string
}

func (s selection) String() string {
	text := strings.Trim(s.labels+" & "+s.fields, " &")
	if text == "" {
		return "everything"
	}
	return text
}

// entry is a value of a key, from a revision on. A deletion has no value.
type entry struct {
	change
	isDeletion bool
	value      model.ValueRevision
}

// view is the history of the objects of one selection. To etcd, a selection is a store of its own: an object that no
// longer matches is deleted there.
type view struct {
	*history
	// persisted has one request for each revision after the first.
	persisted []model.EtcdRequest
	entries   map[string][]entry
}

func (h *history) view(s selection) (*view, error) {
	byLabels, err := labels.Parse(s.labels)
	if err != nil {
		return nil, err
	}
	byFields, err := fields.ParseSelector(s.fields)
	if err != nil {
		return nil, err
	}
	v := &view{history: h, entries: map[string][]entry{}}
	for revision := int64(2); revision <= h.to; revision++ {
		var operations []model.EtcdOperation
		for _, c := range h.byRevision[revision] {
			namespace, name, found := strings.Cut(c.Key, "/")
			if !found {
				namespace, name = "", c.Key
			}
			set := fields.Set{"metadata.name": name, "metadata.namespace": namespace}
			isMatch := c.Type != "DELETED" && byLabels.Matches(labels.Set(c.Labels)) && byFields.Matches(set)
			operations = append(operations, v.apply(c, isMatch)...)
		}
		if len(operations) == 0 {
			operations = []model.EtcdOperation{put(otherKey, model.ValueOrHash{})}
		}
		v.persisted = append(v.persisted, txn(operations))
	}
	return v, nil
}

func (v *view) apply(c change, isMatch bool) []model.EtcdOperation {
	key := root + c.Key
	entries := v.entries[key]
	exists := len(entries) > 0 && !entries[len(entries)-1].isDeletion
	if !isMatch && !exists {
		return nil
	}
	e := entry{change: c, isDeletion: !isMatch}
	operation := model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: key}}
	if isMatch {
		e.value = model.ValueRevision{Value: model.ValueOrHash{Value: c.Digest}, ModRevision: c.Version, Version: 1}
		if exists {
			e.value.Version += entries[len(entries)-1].value.Version
		}
		operation = put(key, e.value.Value)
	}
	v.entries[key] = append(entries, e)
	return []model.EtcdOperation{operation}
}

// at returns the existing value of a key at a revision; nil if there is none.
func (v *view) at(key string, revision int64) *entry {
	entries := v.entries[key]
	after, _ := slices.BinarySearchFunc(entries, revision+1, func(e entry, revision int64) int {
		return int(e.change.Version - revision)
	})
	if after == 0 || entries[after-1].isDeletion {
		return nil
	}
	return &entries[after-1]
}

// value returns an object that a client received as etcd's model has it. The version that etcd counts for each key is
// not in it, so the true one is taken.
func (v *view) value(op *operation, received item) model.ValueRevision {
	value := model.ValueRevision{ModRevision: received.Version}
	truth := v.at(root+received.Key, received.Version)
	if truth != nil && truth.change.Version == received.Version {
		value.Version = truth.value.Version
	} else {
		truth = nil
	}
	value.Value = content(op, received.Digest, truth)
	return value
}

// content returns the digest of the whole object. Metadata alone stands for the object that has it. Of protobuf the
// record has no digest, so that only key and version are judged.
func content(op *operation, digest string, truth *entry) model.ValueOrHash {
	switch {
	case truth != nil && (digest == "" || op.encoding() == "metadata" && digest == truth.Metadata):
		return truth.value.Value
	case op.encoding() == "metadata":
		return model.ValueOrHash{Value: "metadata:" + digest}
	default:
		return model.ValueOrHash{Value: digest}
	}
}

// writes returns the operations that made the history, one for each revision, each by a client of its own. The model
// demands that the first operation reads an empty store.
func (v *view) writes(client int, reads []porcupine.Operation) []porcupine.Operation {
	first := model.RangeRequest{RangeOptions: model.RangeOptions{Start: root}}
	operations := []porcupine.Operation{{
		ClientId: client, Call: 1, Return: 2, Input: model.EtcdRequest{Type: model.Range, Range: &first},
		Output: model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{
			Range: &model.RangeResponse{KVs: []model.KeyValue{}}, Revision: 1,
		}},
	}}
	called, returned := v.narrowed(reads)
	for at, request := range v.persisted {
		revision := int64(at) + 2
		results := make([]model.EtcdOperationResult, len(request.Txn.OperationsOnSuccess))
		for at, operation := range request.Txn.OperationsOnSuccess {
			if operation.Type == model.DeleteOperation {
				results[at].Deleted = 1
			}
		}
		operations = append(operations, porcupine.Operation{
			ClientId: client + int(revision), Input: request, Call: called[revision], Return: returned[revision],
			Output: model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{
				Txn: &model.TxnResponse{Results: results}, Revision: revision,
			}},
		})
	}
	for at, w := range v.impossible {
		lost := model.ValueOrHash{Value: fmt.Sprint("lost ", w.Version)}
		operations = append(operations, porcupine.Operation{
			ClientId: client + int(v.to) + 1 + at, Call: v.clock(w.CallNs), Return: v.clock(w.ReturnNs),
			Input: txn([]model.EtcdOperation{put(root+w.Key, lost)}),
			Output: model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{
				Txn: &model.TxnResponse{Results: make([]model.EtcdOperationResult, 1)}, Revision: w.Version,
			}},
		})
	}
	return operations
}

// narrowed returns the bounds of the writes without the times at which no linearization has them: a write is after the
// call of every read with an older revision, and before the response to every read with its revision or a newer one.
// Without that, Porcupine tries most orders of concurrent operations in vain.
func (v *view) narrowed(reads []porcupine.Operation) (called, returned []int64) {
	lastCall, firstReturn := make([]int64, v.to+2), make([]int64, v.to+2)
	for at := range firstReturn {
		firstReturn[at] = math.MaxInt64
	}
	for _, read := range reads {
		at := revision(&read)
		lastCall[at], firstReturn[at] = max(lastCall[at], read.Call), min(firstReturn[at], read.Return)
	}
	for at := v.to; at > 0; at-- {
		firstReturn[at] = min(firstReturn[at], firstReturn[at+1])
	}
	called, returned = make([]int64, v.to+2), make([]int64, v.to+2)
	for at := range v.from + 1 {
		called[at], returned[at] = 2*at, 2*at+1
	}
	for at := v.from + 1; at <= v.to; at++ {
		lastCall[at-1] = max(lastCall[at-1], lastCall[at-2])
		called[at], returned[at] = v.clock(v.called[at]), v.clock(v.returned[at])
		after, before := max(called[at], lastCall[at-1]+1), min(returned[at], firstReturn[at])
		// If there is no such time, Porcupine finds that.
		if after < before {
			called[at], returned[at] = after, before
		}
	}
	return called, returned
}

// clock returns a time of the record as one after the revisions of the initial state. These have no times in the record,
// and get some in their order.
func (h *history) clock(ns int64) int64 {
	return min(ns, math.MaxInt64/2) + 2*h.from + 2
}

func put(key string, value model.ValueOrHash) model.EtcdOperation {
	return model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{Key: key, Value: value}}
}

func txn(operations []model.EtcdOperation) model.EtcdRequest {
	return model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: operations}}
}
