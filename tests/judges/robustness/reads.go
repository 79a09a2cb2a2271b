package main

import (
	"cmp"
	"slices"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// listing is a list with all its pages, or the initial events of a watch.
type listing struct {
	*operation
	// at is the version of the response.
	at       int64
	returned int64
	items    []item
	// isPart says that there is more than what was read, and remaining how much if the response says so.
	isPart    bool
	remaining *int64
}

// list joins the pages of a list; `pages` has the request for the page after each.
func list(op *operation, pages map[uint64]*operation) (l *listing, unjudged string) {
	if !op.succeeded() {
		return nil, "" // It received nothing.
	}
	l = &listing{operation: op, at: op.answer.Version, returned: op.answer.AtNs}
	for page := op; page != nil && page.succeeded(); page = pages[page.Op] {
		if page.answer.Version != l.at {
			return nil, "a list whose pages have several versions"
		}
		l.items = append(l.items, page.answer.Items...)
		l.isPart, l.remaining = page.answer.More, page.answer.Remaining
	}
	return l, ""
}

// demanded returns the version whose state the list must have: that of the response, unless the request demands another
// one or a newer one.
func (l *listing) demanded() int64 {
	match := l.values.Get("resourceVersionMatch")
	isLimited := l.Verb == "list" && match == "" && l.values.Get("limit") != ""
	if l.version() > 0 && (match == "Exact" || isLimited) {
		return l.version()
	}
	return max(l.at, l.version())
}

// read translates a list into a range. Without a requested version, it is one of the newest state, and linearizable.
//
// To etcd, the response to a range at a version has the newest revision, too, which Kubernetes does not return. `floor`
// is the newest revision that was committed before the call for certain, and so the one that suits the server best.
func (v *view) read(l *listing, floor int64) (read *porcupine.Operation, unjudged string) {
	demanded := l.demanded()
	if min(l.at, demanded) < v.from || max(l.at, demanded) > v.to {
		return nil, "a list at a version outside of the truth"
	}
	request := model.RangeRequest{RangeOptions: model.RangeOptions{Start: l.prefix(), End: after(l.prefix())}}
	answer := model.RangeResponse{KVs: []model.KeyValue{}, Count: int64(len(l.items))}
	for _, received := range l.items {
		answer.KVs = append(answer.KVs, model.KeyValue{
			Key: root + received.Key, ValueRevision: v.value(l.operation, received),
		})
	}
	switch {
	case l.isPart && len(l.items) == 0:
		return nil, "a page without items"
	case l.isPart && l.remaining != nil:
		request.Limit, answer.Count = answer.Count, answer.Count+*l.remaining
	case l.isPart:
		// With a selector, a page does not say how much remains.
		request.End = root + l.items[len(l.items)-1].Key + "\x00"
	}
	version := l.at
	if !l.isVersionless() {
		request.Revision, version = demanded, max(floor, demanded)
	}
	return v.reading(l.Client, l.AtNs, l.returned, request, answer, version), ""
}

// get translates a GET. Its response has only the version of the object, so that `floor` serves as for a list.
func (v *view) get(op *operation, floor int64) (read *porcupine.Operation, unjudged string) {
	isFound := op.answer != nil && op.answer.Code == 200 && len(op.answer.Items) == 1
	isAbsent := op.answer != nil && op.answer.Code == 404
	if !isFound && !isAbsent {
		return nil, ""
	}
	key := op.prefix() + op.name
	request := model.RangeRequest{RangeOptions: model.RangeOptions{Start: key}}
	answer, version := model.RangeResponse{KVs: []model.KeyValue{}}, floor
	if isFound {
		received := op.answer.Items[0]
		answer.KVs = []model.KeyValue{{Key: root + received.Key, ValueRevision: v.value(op, received)}}
		answer.Count, version = 1, max(floor, received.Version)
		if !op.isVersionless() {
			request.Revision = received.Version
		}
	} else if !op.isVersionless() {
		return nil, "a GET with a version of an absent object"
	} else {
		for version <= v.to && v.at(key, version) != nil {
			version++
		}
		if version > v.to {
			version = floor
		}
	}
	if version > v.to {
		return nil, "a GET at a version outside of the truth"
	}
	return v.reading(op.Client, op.AtNs, op.answer.AtNs, request, answer, version), ""
}

func (v *view) reading(
	client int, called, returned int64, request model.RangeRequest, answer model.RangeResponse, version int64,
) *porcupine.Operation {
	return &porcupine.Operation{
		ClientId: client, Call: v.clock(called), Return: v.clock(returned),
		Input:  model.EtcdRequest{Type: model.Range, Range: &request},
		Output: model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{Range: &answer, Revision: version}},
	}
}

// floors returns what was committed before each moment, as far as writes and reads show it.
type floors struct {
	// reads are in the order of their ends.
	reads []*porcupine.Operation
}

func (f *floors) add(read *porcupine.Operation) {
	at, _ := slices.BinarySearchFunc(f.reads, read.Return, func(r *porcupine.Operation, end int64) int {
		return cmp.Compare(r.Return, end)
	})
	f.reads = slices.Insert(f.reads, at, read)
}

// before returns the newest revision that was committed for certain when an operation was called.
func (f *floors) before(v *view, called int64) int64 {
	after, _ := slices.BinarySearchFunc(v.returned[1:], called, cmp.Compare)
	floor := int64(max(after, 1))
	for _, read := range f.reads {
		if read.Return >= v.clock(called) {
			break
		}
		floor = max(floor, revision(read))
	}
	return floor
}

func revision(read *porcupine.Operation) int64 {
	return read.Output.(model.MaybeEtcdResponse).Revision
}

func isLinearizable(read *porcupine.Operation) bool {
	return read.Input.(model.EtcdRequest).Range.Revision == 0
}

// after returns the end of a prefix's range.
func after(prefix string) string {
	return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
}

func (c *counts) read(read *porcupine.Operation, into *report.ClientReport, known *floors) {
	if isLinearizable(read) {
		c.linearizable++
	} else {
		c.serializable++
	}
	known.add(read)
	into.KeyValue = append(into.KeyValue, *read)
}
