// Package storage runs the conformance tests of k8s.io/apiserver's storage.Interface on
// an API server: reads by one address, writes by another.
package storage

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// Store is a storage.Interface over HTTP for the example Pods of the tests.
type Store struct {
	// reads gets what the tests read: the server under test.
	reads *client
	// writes is the API server itself.
	writes *client
	etcd   *clientv3.Client
	// compacted is the revision up to which the tests have compacted etcd.
	compacted int64
}

// attemptsMax bounds the attempts of a write whose object has changed meanwhile.
const attemptsMax = 10

var errUnsupported = errors.New("an API server does not offer this")

func (s *Store) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// location splits a key such as /pods/namespace/name; parts may be missing at the end.
func location(key string) (namespace, name string, err error) {
	rest, found := strings.CutPrefix(key, "/pods")
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	if !found || (rest != "" && rest[0] != '/') || len(parts) > 2 {
		return "", "", fmt.Errorf("invalid key: %q", key)
	}
	if len(parts) == 2 {
		return parts[0], parts[1], nil
	}
	return parts[0], "", nil
}

func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, _ uint64) error {
	namespace, name, err := location(key)
	if err != nil {
		return err
	}
	pod := obj.(*example.Pod).DeepCopy()
	if pod.ResourceVersion != "" {
		return storage.ErrResourceVersionSetOnCreate
	}
	pod.Namespace, pod.Name = namespace, name
	created := &example.Pod{}
	err = s.writes.send(ctx, http.MethodPost, s.writes.pods(namespace, "", nil), pod, created)
	if apierrors.IsNotFound(err) {
		if err = s.writes.createNamespace(ctx, namespace); err == nil {
			err = s.writes.send(ctx, http.MethodPost, s.writes.pods(namespace, "", nil), pod, created)
		}
	}
	if apierrors.IsAlreadyExists(err) {
		return storage.NewKeyExistsError(key, 0)
	}
	if err == nil && out != nil {
		*out.(*example.Pod) = *created
	}
	return err
}

func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	namespace, name, err := location(key)
	if err != nil {
		return err
	}
	query := parameters{}.with("resourceVersion", opts.ResourceVersion)
	found := &example.Pod{}
	err = s.reads.get(ctx, namespace, name, query, found)
	switch {
	case apierrors.IsNotFound(err) && opts.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	case apierrors.IsNotFound(err):
		return storage.NewKeyNotFoundError(key, 0)
	case err == nil:
		*out.(*example.Pod) = *found
	}
	return err
}

// selection returns the path of a collection, and the query that selects what opts do.
func selection(key string, opts storage.ListOptions) (namespace string, query parameters, err error) {
	namespace, name, err := location(key)
	if err != nil {
		return "", nil, err
	}
	predicate := opts.Predicate
	field := predicate.Field
	if name != "" || !opts.Recursive {
		if name == "" || opts.Recursive {
			// A key of a collection that is no prefix, or the reverse: nothing is there.
			name = "-"
		}
		field = fields.AndSelectors(field, fields.OneTermEqualSelector("metadata.name", name))
	}
	query = parameters{}.with("labelSelector", predicate.Label.String()).with("fieldSelector", field.String()).
		with("resourceVersion", opts.ResourceVersion).with("resourceVersionMatch", string(opts.ResourceVersionMatch))
	return namespace, query, nil
}

func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	namespace, query, err := selection(key, opts)
	if err != nil {
		return err
	}
	if opts.Predicate.Limit > 0 {
		query = query.with("limit", strconv.FormatInt(opts.Predicate.Limit, 10))
	}
	query = query.with("continue", fromSlash(opts.Predicate.Continue, "/"))
	found := &example.PodList{}
	if err := s.reads.send(ctx, http.MethodGet, s.reads.pods(namespace, "", query), nil, found); err != nil {
		return err
	}
	*out.(*example.PodList) = *found
	out.(*example.PodList).Continue = fromSlash(found.Continue, "")
	return nil
}

// fromSlash returns a continue token whose key begins with slash, as those of custom
// resources do, or "", as those of the tests do. Other tokens stay as they are.
func fromSlash(token, slash string) string {
	content := map[string]any{}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(text, &content) != nil {
		return token
	}
	start, _ := content["start"].(string)
	version, _ := content["rv"].(float64)
	text, err = json.Marshal(struct {
		Version  string `json:"v"`
		Revision int64  `json:"rv"`
		Start    string `json:"start"`
	}{content["v"].(string), int64(version), slash + strings.TrimPrefix(start, "/")})
	if err != nil {
		return token
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	namespace, query, err := selection(key, opts)
	if err != nil {
		return nil, err
	}
	query = query.with("watch", "true")
	if opts.Predicate.AllowWatchBookmarks {
		query = query.with("allowWatchBookmarks", "true")
	}
	if opts.SendInitialEvents != nil {
		// The validation of requests wants both.
		query = query.with("sendInitialEvents", strconv.FormatBool(*opts.SendInitialEvents)).
			with("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	return s.reads.watch(ctx, s.reads.pods(namespace, "", query))
}

// current returns the object that a write is about: the one suggested, or the stored one.
func (s *Store) current(ctx context.Context, key string, suggested runtime.Object) (*example.Pod, error) {
	if suggested != nil {
		return suggested.(*example.Pod).DeepCopy(), nil
	}
	namespace, name, err := location(key)
	if err != nil {
		return nil, err
	}
	found := &example.Pod{}
	err = s.writes.get(ctx, namespace, name, nil, found)
	if apierrors.IsNotFound(err) {
		return nil, storage.NewKeyNotFoundError(key, 0)
	}
	return found, err
}

func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggested runtime.Object, _ storage.DeleteOptions) error {
	return s.onCurrent(ctx, key, suggested, false, func(pod *example.Pod, _ bool) error {
		if err := preconditions.Check(key, pod); err != nil {
			return err
		}
		if err := validate(ctx, pod); err != nil {
			return err
		}
		return s.deleteRevision(ctx, key, pod, out.(*example.Pod))
	})
}

// onCurrent writes what the current object asks for, again if the object has changed
// meanwhile, or if the suggestion was outdated.
func (s *Store) onCurrent(ctx context.Context, key string, suggested runtime.Object, ignoreNotFound bool,
	write func(pod *example.Pod, isNew bool) error) error {
	var failure error
	outdated := ""
	for range attemptsMax {
		pod, err := s.current(ctx, key, suggested)
		isNew := storage.IsNotFound(err) && ignoreNotFound
		if isNew {
			pod, err = &example.Pod{}, nil
		}
		if err != nil {
			return err
		}
		// The suggestion was the stored object, so what it led to is the answer.
		if outdated != "" && outdated == pod.ResourceVersion && !apierrors.IsConflict(failure) {
			return failure
		}
		outdated = ""
		if failure = write(pod, isNew); failure == nil {
			return nil
		}
		if suggested != nil {
			suggested, outdated = nil, pod.ResourceVersion
		} else if !apierrors.IsConflict(failure) && !storage.IsExist(failure) {
			return failure
		}
	}
	return failure
}

// deleteRevision deletes the object if it still is this one, and returns it with the
// version of its deletion, which only a watch says.
func (s *Store) deleteRevision(ctx context.Context, key string, pod, out *example.Pod) error {
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &pod.ResourceVersion}}
	err := s.writes.send(ctx, http.MethodDelete, s.writes.pods(pod.Namespace, pod.Name, nil), options, nil)
	if apierrors.IsNotFound(err) {
		return storage.NewKeyNotFoundError(key, 0)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := parameters{}.with("watch", "true").with("resourceVersion", pod.ResourceVersion).
		with("fieldSelector", "metadata.name="+pod.Name)
	events, err := s.writes.watch(ctx, s.writes.pods(pod.Namespace, "", query))
	if err != nil {
		return err
	}
	for event := range events.ResultChan() {
		if event.Type == watch.Deleted {
			*out = *event.Object.(*example.Pod)
			return nil
		}
	}
	return fmt.Errorf("no event of the deletion of %s", key)
}

func (s *Store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggested runtime.Object) error {
	return s.onCurrent(ctx, key, suggested, ignoreNotFound, func(pod *example.Pod, isNew bool) error {
		if err := preconditions.Check(key, pod); err != nil {
			return err
		}
		return s.update(ctx, key, pod, out.(*example.Pod), isNew, update)
	})
}

func (s *Store) update(
	ctx context.Context, key string, pod, out *example.Pod, isNew bool, update storage.UpdateFunc) error {
	version, _ := s.Versioner().ObjectResourceVersion(pod)
	changed, _, err := update(pod.DeepCopy(), storage.ResponseMeta{ResourceVersion: version})
	if err != nil {
		return err
	}
	if isNew {
		return s.Create(ctx, key, changed, out, 0)
	}
	body := changed.(*example.Pod)
	body.ResourceVersion = pod.ResourceVersion
	written := &example.Pod{}
	err = s.writes.send(ctx, http.MethodPut, s.writes.pods(pod.Namespace, pod.Name, nil), body, written)
	if err == nil {
		*out = *written
	}
	return err
}

func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	list := &example.PodList{}
	query := parameters{}.with("limit", "1")
	if err := s.reads.send(ctx, http.MethodGet, s.reads.pods("", "", query), nil, list); err != nil {
		return 0, err
	}
	return s.Versioner().ParseResourceVersion(list.ResourceVersion)
}

func (s *Store) Stats(context.Context) (storage.Stats, error) { return storage.Stats{}, errUnsupported }

func (s *Store) ReadinessCheck() error { return nil }

func (s *Store) RequestWatchProgress(context.Context) error { return errUnsupported }

func (s *Store) EnableResourceSizeEstimation(storage.KeysFunc) error { return errUnsupported }

func (s *Store) CompactRevision() int64 { return s.compacted }
