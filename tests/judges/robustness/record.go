package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// line is one line of a record of `fanoutctl verify`; exactly one member is set (crates/verify/src/record.rs).
type line struct {
	Run     *runLine
	Call    *call
	Return  *response
	Event   *event
	Written *write
	Truth   *change
	Known   *known
	Fault   *fault
}

type runLine struct {
	Truth string
	Seed  uint64
}

type call struct {
	Op       uint64
	Client   int
	AtNs     int64 `json:"at_ns"`
	Verb     string
	Path     string
	Query    string
	Encoding string
	Resumes  *uint64
	Server   json.RawMessage
}

type response struct {
	Op        uint64
	AtNs      int64 `json:"at_ns"`
	Code      int
	Version   int64
	Encoding  string
	Items     []item
	More      bool
	Remaining *int64
}

type item struct {
	Key     string
	Version int64
	Digest  string
}

type event struct {
	Op         uint64
	AtNs       int64 `json:"at_ns"`
	Type       string
	InitialEnd bool `json:"initial_end"`
	item
}

type write struct {
	CallNs   int64 `json:"call_ns"`
	ReturnNs int64 `json:"return_ns"`
	Verb     string
	Key      string
	Version  int64
	Code     int
}

// change is a change that etcd's own watch delivered, or an object of the state in which that watch began.
type change struct {
	Resource string
	Key      string
	Version  int64
	Type     string
	AtNs     int64 `json:"at_ns"`
	Digest   string
	Metadata string
	Labels   map[string]string
	Source   string
}

type known struct {
	From int64
	To   int64
	AtNs int64 `json:"at_ns"`
}

type fault struct{ Hits int }

// operation is one request of a client with its results.
type operation struct {
	call
	values    url.Values
	namespace string
	name      string
	answer    *response
	events    []event
}

// record is everything that a run recorded, with operations in the order of their calls.
type record struct {
	operations []*operation
	byOp       map[uint64]*operation
	writes     []write
	changes    []change
	known      []known
	clients    map[int]bool
	faults     int
}

// readRecord reads a record whose truth comes from etcd. Requests to the apiserver itself are left out.
func readRecord(from io.Reader) (*record, error) {
	r := &record{byOp: map[uint64]*operation{}, clients: map[int]bool{}}
	lines := bufio.NewReaderSize(from, 1<<20)
	for number := 1; ; number++ {
		text, err := lines.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			break
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		var one line
		if err := json.Unmarshal(text, &one); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if err := r.add(one); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if len(r.changes) == 0 || len(r.known) == 0 {
		return nil, fmt.Errorf("the record has no changes of etcd")
	}
	return r, nil
}

func (r *record) add(one line) error {
	switch {
	case one.Run != nil && one.Run.Truth != "etcd":
		return fmt.Errorf("the truth comes from %q, not from etcd", one.Run.Truth)
	case one.Call != nil && len(one.Call.Server) > 0 && string(one.Call.Server) == `"direct"`:
	case one.Call != nil:
		op := &operation{call: *one.Call}
		if err := op.parse(); err != nil {
			return err
		}
		r.operations = append(r.operations, op)
		r.byOp[op.Op] = op
		r.clients[op.Client] = true
	case one.Return != nil:
		if op := r.byOp[one.Return.Op]; op != nil {
			op.answer = one.Return
		}
	case one.Event != nil:
		if op := r.byOp[one.Event.Op]; op != nil {
			op.events = append(op.events, *one.Event)
		}
	case one.Written != nil:
		r.writes = append(r.writes, *one.Written)
	case one.Truth != nil && one.Truth.Source == "":
		r.changes = append(r.changes, *one.Truth)
	case one.Known != nil:
		r.known = append(r.known, *one.Known)
	case one.Fault != nil:
		r.faults += one.Fault.Hits
	}
	return nil
}

// parse splits the path, /api/v1/… or /apis/GROUP/VERSION/…, into namespace and name, and decodes the query.
func (op *operation) parse() (err error) {
	parts := strings.Split(strings.Trim(op.Path, "/"), "/")
	root := 2
	if parts[0] == "apis" {
		root = 3
	}
	if len(parts) <= root {
		return fmt.Errorf("no resource in the path %q", op.Path)
	}
	parts = parts[root:]
	if parts[0] == "namespaces" && len(parts) > 2 {
		op.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 1 {
		op.name = parts[1]
	}
	op.values, err = url.ParseQuery(op.Query)
	return err
}

// encoding returns the encoding of the response.
func (op *operation) encoding() string {
	if op.answer != nil && op.answer.Encoding != "" {
		return op.answer.Encoding
	}
	return op.call.Encoding
}

func (op *operation) succeeded() bool {
	return op.answer != nil && op.answer.Code == 200
}

// version returns the requested resource version; 0 if there is none.
func (op *operation) version() int64 {
	version, _ := strconv.ParseInt(op.values.Get("resourceVersion"), 10, 64)
	return version
}

func (op *operation) isVersionless() bool {
	return op.values.Get("resourceVersion") == ""
}
