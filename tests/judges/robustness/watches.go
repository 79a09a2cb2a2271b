package main

import (
	"go.etcd.io/etcd/tests/v3/robustness/model"
)

// watch translates a watch. If it began with the state, that is returned as a list, too.
func (v *view) watch(op *operation) (watch *model.WatchOperation, state *listing, unjudged string) {
	if !op.succeeded() {
		return nil, nil, "" // It received nothing.
	}
	request := model.WatchRequest{
		Key: op.prefix(), WithPrefix: true, WithPrevKV: true,
		WithProgressNotify: isTrue(op.values.Get("allowWatchBookmarks")),
	}
	events := op.events
	_, isSaid := op.values["sendInitialEvents"]
	switch isWanted := isTrue(op.values.Get("sendInitialEvents")); {
	case isWanted || !isSaid && op.version() == 0:
		end := 0
		for end < len(events) && !events[end].InitialEnd {
			end++
		}
		if end == len(events) {
			return nil, nil, "a watch whose initial events have no marked end"
		}
		state = &listing{operation: op, at: events[end].Version, returned: events[end].AtNs}
		for _, initial := range events[:end] {
			if initial.Type != "ADDED" {
				return nil, nil, "a watch whose initial events have no marked end"
			}
			state.items = append(state.items, initial.item)
		}
		request.Revision = events[end].Version + 1
		events = events[end+1:]
	case op.version() > 0:
		request.Revision = op.version() + 1
	}
	// Without a revision, the first event says where a watch began.
	if request.Revision > 0 && request.Revision <= v.from {
		return nil, nil, "a watch from before the truth began"
	}
	return &model.WatchOperation{Request: request, Responses: v.responses(op, events)}, state, ""
}

// responses returns one response for each event, because each is a frame of its own. Events of one revision are joined
// if etcd changed several objects in it. What is beyond the end of the truth is left out.
func (v *view) responses(op *operation, events []event) (responses []model.WatchResponse) {
	for _, received := range events {
		if received.Version > v.to {
			return responses
		}
		response := model.WatchResponse{Revision: received.Version}
		switch received.Type {
		case "BOOKMARK":
			response.IsProgressNotify = true
		case "ERROR":
			continue
		default:
			response.Events = []model.WatchEvent{v.event(op, received)}
			last := len(responses) - 1
			if len(v.byRevision[received.Version]) > 1 && last >= 0 && responses[last].Revision == received.Version {
				responses[last].Events = append(responses[last].Events, response.Events...)
				continue
			}
		}
		responses = append(responses, response)
	}
	return responses
}

func (v *view) event(op *operation, received event) (translated model.WatchEvent) {
	translated.Key, translated.Revision = root+received.Key, received.Version
	if received.Type != "DELETED" {
		translated.Type, translated.IsCreate = model.PutOperation, received.Type == "ADDED"
		translated.Value = v.value(op, received.item).Value
		return translated
	}
	// The object of a deletion is the last one before it, with the version of the deletion.
	translated.Type = model.DeleteOperation
	if last := v.at(translated.Key, received.Version-1); last != nil {
		previous := last.value
		previous.Value = content(op, received.Digest, last)
		translated.PrevValue = &previous
	}
	return translated
}

// prefix returns the key prefix that a list or a watch selects.
func (op *operation) prefix() string {
	if op.namespace == "" {
		return root
	}
	return root + op.namespace + "/"
}

// isTrue says whether Kubernetes takes a query's value for true.
func isTrue(value string) bool {
	return value != "" && value != "0" && value != "false"
}
