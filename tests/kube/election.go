package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The defaults of Kubernetes' own components (component-base, LeaderElectionConfiguration).
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// electionOptions say how many leaders there are, and for how long.
type electionOptions struct {
	client                              clientFlags
	count                               int
	namespace, name, readyFile, endFile string
}

// electionSummary is what became of all leaders. A healthy leader's longest gap is a
// little above the retry period.
type electionSummary struct {
	Leaders      int   `json:"leaders"`
	Lost         int   `json:"lost"`
	Renewals     int   `json:"renewals"`
	Failures     int   `json:"failures"`
	LongestGapMS int64 `json:"longest_gap_ms"`
}

// A leader holds one lease through client-go, on connections of its own.
type leader struct {
	resourcelock.Interface
	out     *lines
	leading chan struct{}

	mutex    sync.Mutex
	lost     bool
	renewals int
	failures int
	last     time.Time
	gap      time.Duration
}

func driveElection(args []string) error {
	var options electionOptions
	flags := flag.NewFlagSet("drive election", flag.ContinueOnError)
	options.client.register(flags)
	flags.IntVar(&options.count, "count", 1, "leaders, each of a lease and on connections of its own")
	flags.StringVar(&options.namespace, "namespace", "default", "`namespace` of the leases")
	flags.StringVar(&options.name, "name", "election", "`name` of the leases, before their number")
	flags.StringVar(&options.readyFile, "ready-file", "", "write this `file` once all are leaders")
	flags.StringVar(&options.endFile, "end-file", "", "once this `file` is there, end when all have renewed again or lost")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	if options.count < 1 || options.endFile == "" {
		return usagef("drive election: --count must be positive and --end-file is required")
	}
	return options.run()
}

func (o *electionOptions) run() error {
	ctx, cancel := o.client.context()
	defer cancel()
	out, err := openLines("")
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	leaders := make([]*leader, 0, o.count)
	var group sync.WaitGroup
	for number := range o.count {
		one, elector, err := o.newLeader(number, out)
		if err != nil {
			return err
		}
		leaders = append(leaders, one)
		group.Go(func() { elector.Run(running) })
	}
	for _, one := range leaders {
		select {
		case <-one.leading:
		case <-ctx.Done():
			return fmt.Errorf("not every lease was acquired: %w", context.Cause(ctx))
		}
	}
	if o.readyFile != "" {
		if err := os.WriteFile(o.readyFile, nil, 0o600); err != nil {
			return fmt.Errorf("write ready file: %w", err)
		}
	}
	for {
		if _, err := os.Stat(o.endFile); err == nil {
			break
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("there is no %s: %w", o.endFile, context.Cause(ctx))
		}
	}
	// Whoever is to lose its lease has lost it by then.
	ended := time.Now()
	for _, one := range leaders {
		for !one.settledSince(ended) {
			if !sleep(ctx, 50*time.Millisecond) {
				return fmt.Errorf("%s neither renewed nor lost: %w", one.Identity(), context.Cause(ctx))
			}
		}
	}
	summary := sum(leaders)
	stop()
	group.Wait()
	return out.conclude(summary)
}

func (o *electionOptions) newLeader(number int, out *lines) (*leader, *leaderelection.LeaderElector, error) {
	config, err := o.client.restConfig()
	if err != nil {
		return nil, nil, err
	}
	// client-go shares connections between clients whose configurations are equal; a
	// dialer is equal to itself only.
	config.Dial = (&net.Dialer{}).DialContext
	identity := resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("leader-%d", number)}
	name := fmt.Sprintf("%s-%d", o.name, number)
	// As the components make theirs: a request may take half of the renew deadline.
	lock, err := resourcelock.NewFromKubeconfig(
		resourcelock.LeasesResourceLock, o.namespace, name, identity, config, renewDeadline)
	if err != nil {
		return nil, nil, fmt.Errorf("make lock: %w", err)
	}
	one := &leader{Interface: lock, out: out, leading: make(chan struct{})}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            one,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Name:            name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(one.leading) },
			OnStoppedLeading: one.stopped,
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make elector: %w", err)
	}
	return one, elector, nil
}

// stopped is called when a leader resigns, and also at the end, when nobody counts any more.
func (l *leader) stopped() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.lost = true
}

// Create and Update are what acquires and renews; each attempt is recorded.
func (l *leader) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.attempted(l.Interface.Create(ctx, record))
}

func (l *leader) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.attempted(l.Interface.Update(ctx, record))
}

// Get is asked before the first attempt, when nothing may be there yet, and before a
// repeated one.
func (l *leader) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil && !errors.IsNotFound(err) {
		l.failed(err)
	}
	return record, raw, err
}

func (l *leader) attempted(err error) error {
	if err != nil {
		l.failed(err)
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := time.Now()
	if !l.last.IsZero() {
		l.gap = max(l.gap, now.Sub(l.last))
	}
	l.last = now
	l.renewals++
	return nil
}

// settledSince reports whether it has renewed its lease since then, or does not hold it
// any more.
func (l *leader) settledSince(then time.Time) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.lost || l.last.After(then)
}

func (l *leader) failed(err error) {
	l.mutex.Lock()
	l.failures++
	l.mutex.Unlock()
	l.out.write(map[string]string{"leader": l.Identity(), "error": err.Error()})
	l.out.flush()
}

func sum(leaders []*leader) electionSummary {
	summary := electionSummary{Leaders: len(leaders)}
	for _, one := range leaders {
		one.mutex.Lock()
		if one.lost {
			summary.Lost++
		}
		summary.Renewals += one.renewals
		summary.Failures += one.failures
		summary.LongestGapMS = max(summary.LongestGapMS, one.gap.Milliseconds())
		one.mutex.Unlock()
	}
	return summary
}
