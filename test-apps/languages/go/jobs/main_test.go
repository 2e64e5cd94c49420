package main

import "testing"

func TestGoroutines(t *testing.T) {
	if sum := Goroutines(1000); sum != 499500 {
		t.Error(sum)
	}
}

func TestEcho(t *testing.T) {
	if right := Echo(20); right != 20 {
		t.Error(right)
	}
}
