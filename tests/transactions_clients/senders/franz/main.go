// Pipelined transactions with franz-go, as `transactions_clients.sender` describes them.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

type sender struct {
	client                                              *kgo.Client
	partitions, transactions, records, abortEvery, size int
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	numbers := make([]int, 0, 5)
	for _, text := range arguments[3:] {
		number, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		numbers = append(numbers, number)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(arguments[0], ",")...),
		kgo.TransactionalID(arguments[1]),
		kgo.DefaultProduceTopic(arguments[2]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	s := sender{client, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]}
	for transaction := 0; transaction < s.transactions; transaction++ {
		if err := s.transact(transaction); err != nil {
			return fmt.Errorf("transaction %d: %w", transaction, err)
		}
	}
	return nil
}

func (s *sender) transact(transaction int) error {
	ctx := context.Background()
	if err := s.client.BeginTransaction(); err != nil {
		return err
	}
	var once sync.Once
	var failure error
	for number := 0; number < s.records; number++ {
		value := fmt.Sprintf("%d %d ", transaction, number)
		value += strings.Repeat("x", s.size-len(value))
		record := &kgo.Record{Partition: int32(number % s.partitions), Value: []byte(value)}
		s.client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failure = err })
			}
		})
	}
	if err := s.client.Flush(ctx); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	return s.client.EndTransaction(ctx, kgo.TransactionEndTry((transaction+1)%s.abortEvery != 0))
}
