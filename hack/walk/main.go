// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Walk lists the files that a reader visits who follows the calls from one function to another. It measures how far a job is spread.
//
//	go run ./hack/walk controllers/pod.Reconciler.Reconcile internal/northbound.Engine.Apply
//
// The way are the functions of this module that the first one calls, directly or through others, and that call the second one. Their other callees are
// not listed, but counted. A function is named by the directory of its package, its receiver if it has one, and its name. Calls through a function
// value that is stored somewhere, and through interfaces of other modules, are not followed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

func main() {
	all := flag.Bool("functions", false, "list the functions of each file as well")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: walk [-functions] FROM TO")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), *all); err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func run(from, to string, functions bool) error {
	p, err := load("./...")
	if err != nil {
		return err
	}
	way, all, err := p.walk(from, to)
	if err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(way)) {
		names := slices.Sorted(maps.Keys(way[file]))
		fmt.Printf("%4d  %s\n", len(names), file)
		if functions {
			fmt.Printf("      %s\n", strings.Join(names, ", "))
		}
	}
	fmt.Printf("on the way: %s; with all that these call: %s\n", way, all)
	return nil
}

// tour are the functions of a walk by the file that they are in.
type tour map[string]map[string]bool

func (t tour) add(file, function string) {
	if t[file] == nil {
		t[file] = map[string]bool{}
	}
	t[file][function] = true
}

func (t tour) String() string {
	functions := 0
	for _, names := range t {
		functions += len(names)
	}
	return fmt.Sprintf("%d functions in %d files", functions, len(t))
}

// program is the module in SSA form. Other modules have types only.
type program struct {
	root      string // directory of the module
	module    string
	functions map[string]*ssa.Function
	// types are the concrete types of the module, for calls through interfaces.
	types []types.Type
	ssa   *ssa.Program
}

func load(pattern string) (*program, error) {
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedSyntax |
		packages.NeedModule | packages.NeedExportFile | packages.NeedTypesSizes
	loaded, err := packages.Load(&packages.Config{Mode: mode}, pattern)
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	if packages.PrintErrors(loaded) > 0 {
		return nil, errors.New("packages have errors")
	}
	prog, built := ssautil.Packages(loaded, 0)
	prog.Build()
	p := &program{root: loaded[0].Module.Dir, module: loaded[0].Module.Path, functions: map[string]*ssa.Function{}, ssa: prog}
	for _, pkg := range built {
		for _, member := range pkg.Members {
			switch m := member.(type) {
			case *ssa.Function:
				p.functions[p.name(m)] = m
			case *ssa.Type:
				p.addMethods(m.Type())
			}
		}
	}
	return p, nil
}

func (p *program) addMethods(t types.Type) {
	if named, is := t.(*types.Named); is && named.TypeParams().Len() > 0 || types.IsInterface(t) {
		return
	}
	p.types = append(p.types, types.NewPointer(t))
	set := p.ssa.MethodSets.MethodSet(types.NewPointer(t))
	for i := range set.Len() {
		if f := p.ssa.MethodValue(set.At(i)); f != nil && f.Synthetic == "" {
			p.functions[p.name(f)] = f
		}
	}
}

// name returns a function's name as of the arguments.
func (p *program) name(f *ssa.Function) string {
	for f.Parent() != nil {
		f = f.Parent()
	}
	if f.Origin() != nil {
		f = f.Origin()
	}
	if f.Pkg == nil {
		return f.Name()
	}
	name := f.Name()
	if receiver := f.Signature.Recv(); receiver != nil {
		t := receiver.Type()
		if pointer, is := t.(*types.Pointer); is {
			t = pointer.Elem()
		}
		if named, is := t.(*types.Named); is {
			name = named.Obj().Name() + "." + name
		}
	}
	return strings.TrimPrefix(f.Pkg.Pkg.Path(), p.module+"/") + "." + name
}

// walk returns the functions on the way between two functions, and all that the first one calls until the second one.
func (p *program) walk(from, to string) (way, all tour, err error) {
	for _, name := range []string{from, to} {
		if p.functions[name] == nil {
			return nil, nil, fmt.Errorf("no function %s: write for example controllers/pod.Reconciler.Reconcile", name)
		}
	}
	callers, queue := map[*ssa.Function][]*ssa.Function{}, []*ssa.Function{p.functions[from]}
	seen := map[*ssa.Function]bool{p.functions[from]: true}
	all = tour{}
	for len(queue) > 0 {
		f := queue[0]
		queue = queue[1:]
		p.visit(all, f)
		if f == p.functions[to] {
			continue
		}
		for _, callee := range p.callees(f) {
			if callee == nil || !p.ours(callee) {
				continue
			}
			callers[callee] = append(callers[callee], f)
			if !seen[callee] {
				seen[callee] = true
				queue = append(queue, callee)
			}
		}
	}
	if !seen[p.functions[to]] {
		return nil, nil, fmt.Errorf("%s does not call %s", from, to)
	}
	way, queue = tour{}, []*ssa.Function{p.functions[to]}
	onWay := map[*ssa.Function]bool{p.functions[to]: true}
	for len(queue) > 0 {
		f := queue[0]
		queue = queue[1:]
		p.visit(way, f)
		for _, caller := range callers[f] {
			if !onWay[caller] {
				onWay[caller] = true
				queue = append(queue, caller)
			}
		}
	}
	return way, all, nil
}

func (p *program) visit(t tour, f *ssa.Function) {
	if file := p.file(f); file != "" {
		t.add(file, p.name(f))
	}
}

// ours reports whether a function has code in this module.
func (p *program) ours(f *ssa.Function) bool {
	if f.Origin() != nil {
		f = f.Origin()
	}
	return f.Pkg == nil || strings.HasPrefix(f.Pkg.Pkg.Path(), p.module)
}

func (p *program) file(f *ssa.Function) string {
	if !f.Pos().IsValid() {
		return ""
	}
	name := p.ssa.Fset.Position(f.Pos()).Filename
	relative, err := filepath.Rel(p.root, name)
	if err != nil || strings.HasPrefix(relative, "..") || strings.HasPrefix(filepath.Base(relative), "zz_generated") {
		return ""
	}
	return relative
}

// callees returns the functions that f calls or makes.
func (p *program) callees(f *ssa.Function) []*ssa.Function {
	out := slices.Clone(f.AnonFuncs)
	for _, block := range f.Blocks {
		for _, instruction := range block.Instrs {
			for _, operand := range instruction.Operands(nil) {
				if callee, is := (*operand).(*ssa.Function); is {
					out = append(out, callee)
				}
			}
			call, is := instruction.(ssa.CallInstruction)
			if !is {
				continue
			}
			if common := call.Common(); common.IsInvoke() {
				out = append(out, p.implementations(common)...)
			}
		}
	}
	return out
}

// implementations returns the module's methods that a call through one of its interfaces can reach.
func (p *program) implementations(call *ssa.CallCommon) []*ssa.Function {
	method := call.Method
	if method.Pkg() == nil || !strings.HasPrefix(method.Pkg().Path(), p.module) {
		return nil
	}
	of, is := call.Value.Type().Underlying().(*types.Interface)
	if !is {
		return nil
	}
	var out []*ssa.Function
	for _, t := range p.types {
		if !types.Implements(t, of) {
			continue
		}
		if s := p.ssa.MethodSets.MethodSet(t).Lookup(method.Pkg(), method.Name()); s != nil {
			out = append(out, p.ssa.MethodValue(s))
		}
	}
	return out
}
