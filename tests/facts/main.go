// Command kube-facts says how the Kubernetes API types of one minor are laid out in protobuf and in JSON, joins what it
// said of several minors into the table that src/wire/derive reads, and makes the pairs that the table is tested with.
//
// It is built once per minor, against that minor's modules: see generate.sh.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

const usage = `usage:
  kube-facts facts                        the facts of the minor this is built against
  kube-facts merge MINOR=FILE...          the table of several minors, oldest first
  kube-facts pairs MINOR COUNT SEED       COUNT random objects of each kind, a line each:
                                          MINOR, apiVersion, kind, protobuf body in hex, JSON body`

func main() {
	out := bufio.NewWriter(os.Stdout)
	if err := run(out, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kube-facts:", err)
		os.Exit(1)
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "kube-facts:", err)
		os.Exit(1)
	}
}

func run(out *bufio.Writer, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "facts":
		facts, err := reflectFacts()
		if err != nil {
			return err
		}
		facts.write(out)
		return nil
	case len(args) > 1 && args[0] == "merge":
		return merge(out, args[1:])
	case len(args) == 4 && args[0] == "pairs":
		count, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		seed, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			return err
		}
		return pairs(out, args[1], count, seed)
	default:
		return fmt.Errorf("%s", usage)
	}
}
