package storage

import (
	"context"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	suite "k8s.io/apiserver/pkg/storage/testing"
)

// setUp returns an empty store. The environment names the servers.
func setUp(t *testing.T) (context.Context, *Store) {
	t.Helper()
	reads, err := newClient(os.Getenv("STORAGE_READS"))
	if err != nil {
		t.Fatal(err)
	}
	writes, err := newClient(os.Getenv("STORAGE_WRITES"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("STORAGE_ETCD")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { etcd.Close() })
	// An API server deletes no collection across namespaces.
	left := &example.PodList{}
	if err := writes.send(t.Context(), http.MethodGet, writes.pods("", "", nil), nil, left); err != nil {
		t.Fatal(err)
	}
	for _, pod := range left.Items {
		target := writes.pods(pod.Namespace, pod.Name, nil)
		if err := writes.send(t.Context(), http.MethodDelete, target, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	return context.Background(), &Store{reads: reads, writes: writes, etcd: etcd}
}

// increaseVersion writes a key that no resource has.
func (s *Store) increaseVersion(ctx context.Context, t *testing.T) int64 {
	response, err := s.etcd.Put(ctx, "increaseRV", "ok")
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Revision
}

// compact compacts etcd as an API server does, so that all of them learn it.
func (s *Store) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// The first attempt learns the version of the key, unless it is new.
	version, _, compacted, err := etcd3.Compact(ctx, s.etcd, 0, revision)
	if err == nil && compacted != revision {
		_, _, _, err = etcd3.Compact(ctx, s.etcd, version, revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.compacted = revision
}

// TestStorage runs what needs neither a transformer of stored bytes, nor a time to live,
// nor objects without a namespace, none of which an API server offers.
func TestStorage(t *testing.T) {
	type test = func(context.Context, *testing.T, *Store)
	plain := func(run func(context.Context, *testing.T, storage.Interface)) test {
		return func(ctx context.Context, t *testing.T, s *Store) { run(ctx, t, s) }
	}
	paged := func(run func(context.Context, *testing.T, storage.Interface, suite.CallsValidation)) test {
		return func(ctx context.Context, t *testing.T, s *Store) { run(ctx, t, s, func(*testing.T, uint64, uint64) {}) }
	}
	// Compacting comes last, because the history that the others read is gone then.
	compacting := map[string]test{
		"CompactRevision": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestCompactRevision(ctx, t, s, s.increaseVersion, s.compact)
		},
		"List": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestList(ctx, t, s, s.compact, false, nil)
		},
		"ListInconsistentContinuation": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestListInconsistentContinuation(ctx, t, s, s.compact)
		},
		"WatchFromZero": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestWatchFromZero(ctx, t, s, s.compact)
		},
	}
	tests := map[string]test{
		"Create": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestCreate(ctx, t, s, func(context.Context, *testing.T, string) {})
		},
		"CreateWithKeyExist":                         plain(suite.RunTestCreateWithKeyExist),
		"Get":                                        plain(suite.RunTestGet),
		"UnconditionalDelete":                        plain(suite.RunTestUnconditionalDelete),
		"ConditionalDelete":                          plain(suite.RunTestConditionalDelete),
		"DeleteWithSuggestion":                       plain(suite.RunTestDeleteWithSuggestion),
		"DeleteWithSuggestionAndConflict":            plain(suite.RunTestDeleteWithSuggestionAndConflict),
		"DeleteWithConflict":                         plain(suite.RunTestDeleteWithConflict),
		"DeleteWithSuggestionOfDeletedObject":        plain(suite.RunTestDeleteWithSuggestionOfDeletedObject),
		"ValidateDeletionWithSuggestion":             plain(suite.RunTestValidateDeletionWithSuggestion),
		"ValidateDeletionWithOnlySuggestionValid":    plain(suite.RunTestValidateDeletionWithOnlySuggestionValid),
		"PreconditionalDeleteWithSuggestion":         plain(suite.RunTestPreconditionalDeleteWithSuggestion),
		"PreconditionalDeleteWithOnlySuggestionPass": plain(suite.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		"GetListRecursivePrefix":                     plain(suite.RunTestGetListRecursivePrefix),
		"ListPaging":                                 plain(suite.RunTestListPaging),
		"NamespaceScopedList":                        plain(suite.RunTestNamespaceScopedList),
		"GuaranteedUpdateWithConflict":               plain(suite.RunTestGuaranteedUpdateWithConflict),
		"GuaranteedUpdateWithSuggestionAndConflict":  plain(suite.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		"Watch":                                    plain(suite.RunTestWatch),
		"DeleteTriggerWatch":                       plain(suite.RunTestDeleteTriggerWatch),
		"WatchFromNonZero":                         plain(suite.RunTestWatchFromNonZero),
		"DelayedWatchDelivery":                     plain(suite.RunTestDelayedWatchDelivery),
		"WatchContextCancel":                       plain(suite.RunTestWatchContextCancel),
		"WatcherTimeout":                           plain(suite.RunTestWatcherTimeout),
		"WatchDeleteEventObjectHaveLatestRV":       plain(suite.RunTestWatchDeleteEventObjectHaveLatestRV),
		"NamespaceScopedWatch":                     plain(suite.RunTestNamespaceScopedWatch),
		"WatchBookmarksWithCorrectResourceVersion": plain(suite.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
		"SendInitialEventsBackwardCompatibility":   plain(suite.RunSendInitialEventsBackwardCompatibility),
		"WatchSemantics":                           plain(suite.RunWatchSemantics),
		"WatchSemanticInitialEventsExtended":       plain(suite.RunWatchSemanticInitialEventsExtended),
		"WatchListMatchSingle":                     plain(suite.RunWatchListMatchSingle),
		"ListContinuation":                         paged(suite.RunTestListContinuation),
		"ListPaginationRareObject":                 paged(suite.RunTestListPaginationRareObject),
		"ListContinuationWithFilter":               paged(suite.RunTestListContinuationWithFilter),
		"ConsistentList": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestConsistentList(ctx, t, s, s.increaseVersion, true, true, true)
		},
		"GetListNonRecursive": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestGetListNonRecursive(ctx, t, s.increaseVersion, s)
		},
		"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, s *Store) {
			suite.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
		},
	}
	for _, tests := range []map[string]test{tests, compacting} {
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			t.Run(name, func(t *testing.T) {
				ctx, store := setUp(t)
				tests[name](ctx, t, store)
			})
		}
	}
}
